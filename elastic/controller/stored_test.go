package controller

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
)

// Gangs that versions of the project left, each in the words of its commit, encoded by its code. Nothing writes these files anew: a version
// adds its own.
const stored5e793c5 = "testdata/stored/5e793c5.json"

// renamed are fields, and values of field cause, by the names that earlier versions gave them.
var renamed = map[string]string{"doomed": "pendingReplacements", "AgentSilent": "AgentUnreachable", "NodeSilent": "NodeUnreachable"}

// TestStoredRecords: the records that controllers of earlier versions wrote into Gangs are read by today's, and nothing of them is lost
// where it writes them again, in today's words alone.
func TestStoredRecords(t *testing.T) {
	files, _ := filepath.Glob("testdata/stored/*.json")
	if len(files) == 0 {
		t.Fatal("no record of any version is kept")
	}
	for _, file := range files {
		written, err := json.Marshal(runStatus(recordOf(readGang(t, file).Status.Run)))
		if err != nil {
			t.Fatal(err)
		}
		var was struct{ Status struct{ Run map[string]any } }
		var now map[string]any
		if err := json.Unmarshal(written, &now); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &was)
		}
		if err != nil || len(was.Status.Run) == 0 {
			t.Fatalf("%s: no record, %v", file, err)
		}
		delete(was.Status.Run, "writer") // each write has its own
		noUnknownSteps(was.Status.Run["recoveries"])
		was.Status.Run["copies"], now["copies"] = apart(was.Status.Run["copies"]), apart(now["copies"])
		lost(t, file, was.Status.Run, now)
		for name := range renamed {
			if _, old := now[name]; old {
				t.Errorf("%s: %q is written", file, name)
			}
		}
	}
}

// TestPodsGivenUpByAnEarlierVersion: nobody tells a coordinator again of pods that the one before gave up by itself. It must find them,
// with causes that it knows for its own, or it would wait for their agents anew.
func TestPodsGivenUpByAnEarlierVersion(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_123_456).UTC()
	after := func(s int) time.Time { return at.Add(time.Duration(s) * time.Second) }
	want := []elastic.Termination{
		{Slot: 1, Pod: "uid-1", Name: "llama-1", Node: "n1", Cause: elastic.AgentUnreachable, Message: "its agent was not heard for 2m0s while generation 4 was halting", At: after(400), Deadline: after(400), Dead: true},
		{Slot: 0, Pod: "uid-0", Name: "llama-0", Node: "n0", Cause: "XidFatal", Message: "Xid 79", At: after(401), Deadline: after(461)},
		{Slot: 3, Pod: "uid-3", Name: "llama-3", Node: "n3", Cause: elastic.HardwareSuspected, Message: "rank 3 was killed by signal 7", At: after(402)},
	}
	r := recordOf(readGang(t, stored5e793c5).Status.Run)
	got := r.PendingReplacements
	for i := range got {
		got[i].At, got[i].Deadline = got[i].At.UTC(), got[i].Deadline.UTC()
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("pending are\n%+v, want\n%+v", got, want)
	}
	if c := r.Recoveries[1].Replaced[0].Cause; c != v1alpha1.CauseNodeUnreachable {
		t.Errorf("a replacement's cause is %q", c)
	}
}

func TestRoomHeldByAnEarlierVersion(t *testing.T) {
	h := readGang(t, stored5e793c5).Status.Placement.Held
	if h.Kind != v1alpha1.HeldNomination || !reflect.DeepEqual(h.Victims, []string{"gang team-b/low"}) || h.VictimPods != 2 || h.Leaving != nil || h.LeavingPods != 0 {
		t.Errorf("%+v", h)
	}
}

// noUnknownSteps drops the steps done again that earlier versions wrote as 0 where they did not know them.
func noUnknownSteps(recoveries any) {
	all, _ := recoveries.([]any)
	for _, r := range all {
		if r, _ := r.(map[string]any); r["reachedStep"] == nil || r["resumedAt"] == nil {
			delete(r, "stepsRecomputed")
		}
	}
}

func readGang(t *testing.T, file string) v1alpha1.Gang {
	t.Helper()
	var g v1alpha1.Gang
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// apart has one entry for each rank of those that are one entry in a row.
func apart(copies any) (out []any) {
	rows, _ := copies.([]any)
	for _, row := range rows {
		one, _ := row.(map[string]any)
		first, _ := one["rank"].(float64)
		ranks, _ := one["ranks"].(float64)
		for i := range int(max(1, ranks)) {
			rank := maps.Clone(one)
			rank["rank"] = first + float64(i)
			delete(rank, "ranks")
			out = append(out, rank)
		}
	}
	return out
}

// lost names what was there and is not any more, or is something else; what is new is left alone.
func lost(t *testing.T, at string, was, now any) {
	t.Helper()
	switch was := was.(type) {
	case map[string]any:
		has, _ := now.(map[string]any)
		for name, v := range was {
			if today, ok := renamed[name]; ok {
				name = today
			}
			if cause, ok := v.(string); ok && name == "cause" && renamed[cause] != "" {
				v = renamed[cause]
			}
			lost(t, at+"."+name, v, has[name])
		}
	case []any:
		has, _ := now.([]any)
		if len(has) != len(was) {
			t.Errorf("%s: %d of %d are left", at, len(has), len(was))
			return
		}
		for i, v := range was {
			lost(t, at, v, has[i])
		}
	default:
		if was != now {
			t.Errorf("%s was %v and is %v", at, was, now)
		}
	}
}
