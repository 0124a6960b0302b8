package controller

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/account"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol"
)

func TestRecordSurvivesTheGang(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_123_456).UTC()
	c := cause.Cause{Code: cause.RankFailed, Rank: 3, Slot: 1, ExitCode: 7, Message: "ValueError: x", Cascade: 2, Suspect: cause.SuspectMemory}
	pending := elastic.Termination{
		Slot:     1,
		Pod:      "uid",
		Name:     "p1",
		Node:     "n1",
		Cause:    "XidFatal",
		Message:  "Xid 79",
		At:       at,
		Deadline: at.Add(time.Minute),
		Dead:     true,
	}
	for name, r := range map[string]elastic.Record{
		"nothing yet": {Phase: elastic.Forming},
		"a step that ranks failed to restore": {
			Phase:  elastic.Running,
			Launch: elastic.Launch{Number: 1, Kept: []elastic.StoredStep{{Mark: protocol.Mark{Step: 7, Generation: 3}, At: at}}},
		},
		"all": {
			Sizes: elastic.Sizes{
				Struck:  []quorum.Struck{{Pods: 3, Generation: 2, Text: "ValueError: x"}, {Pods: 2, Generation: 3}},
				Retried: 6,
				Absent:  90 * time.Second,
				Since:   at,
				Start:   4 * time.Second,
				Growths: elastic.Growths{At: at, Snooze: time.Minute, Came: []elastic.Slot{1, 2}},
			},
			Generation:  4,
			RestoreStep: 9,
			Budget: elastic.Budget{
				Restarts:        3,
				WithoutProgress: 2,
				Unproven:        3,
			},
			BestStep:  12,
			StartedAt: at,
			Phase:     elastic.GivenUp,
			Progress: elastic.Progress{
				Seen: members.Seen{
					Ranks:           4,
					StandbysReady:   3,
					Attached:        []elastic.Slot{0, 1},
					Notes:           []string{"n"},
					Unprotected:     []members.Unprotected{{Slot: 1, Pod: "p1", Runs: "mpirun"}},
					UnprotectedPods: 9,
					WholeCommand:    true,
				},
				Figures: account.Figures{
					Step:           13,
					SavedStep:      12,
					SavedAt:        at,
					Lost:           1500 * time.Millisecond,
					ResumeUnknown:  2,
					OptimizerSteps: 70,
					ResumedAt:      0,
					ResumeKnown:    true,
					StepTime:       1500 * time.Microsecond,
				},
				Waits:          "waits for the agent of slot 1",
				LongestSilence: 90 * time.Second,
			},
			Recoveries: []elastic.Recovery{
				{
					Generation:      2,
					Cause:           c,
					DetectedAt:      at,
					Decide:          time.Millisecond,
					Stop:            0,
					Start:           time.Second,
					Restore:         elastic.NotReached,
					FirstStep:       elastic.NotReached,
					RestoreStep:     9,
					StepsRecomputed: 1,
					Standbys:        3,
					Ranks:           4,
					Drain:           elastic.NotReached,
					Replace:         time.Minute,
					Fetch:           2 * time.Second,
					Replaced: []elastic.Replacement{
						{Termination: pending},
						{Termination: pending, ReleasedAt: at, By: "p2", NewNode: "n2", AttachedAt: at},
					},
					EndedAfter:   7,
					Reached:      17,
					ReachedKnown: true,
					ResumedAt:    0,
					ResumeKnown:  true,
					Waited:       members.Waited{Slot: 1, Ranks: 2, For: time.Second},
				},
			},
			Replacements:  5,
			Branch:        2,
			RestoreBranch: 1,
			Branches:      restore.Line{{Branch: 1, From: 3}, {Branch: 2, From: 6}},
			Durable:       &elastic.StoredStep{Mark: protocol.Mark{Step: 7, Generation: 3, Branch: 2}, At: at},
			Older:         &elastic.StoredStep{Mark: protocol.Mark{Step: 5, Generation: 3}, At: at},
			Copies: []elastic.RankCopy{
				{Mark: protocol.Mark{Step: 8, Generation: 3}, Rank: 1},
				{Mark: protocol.Mark{Step: 8, Generation: 3, Branch: 2}, Rank: 2},
			},
			Kept: []elastic.StoredStep{
				{Mark: protocol.Mark{Step: 4, Generation: 2}, At: at},
				{Mark: protocol.Mark{Step: 3, Generation: 2}, At: at},
			},
			Pinned:  []elastic.StoredStep{{Mark: protocol.Mark{Step: 2, Generation: 1}, At: at}},
			PinWish: 3, CheckWish: 2,
			Moved: []cause.Suspect{cause.SuspectWatchdog, cause.SuspectBus},
			Check: elastic.Check{
				Before: 4, Began: at, Ended: at, Result: elastic.CheckReplaced, Replaced: 1, Text: "w-1", Decides: true, KeepsSlow: true, Wish: 2,
				Rounds: 3, Speeds: []elastic.Speeds{{Model: "H200", Pods: 2, Alone: 1, AloneMedian: 2, Pair: 3, PairMedian: 4}},
				Named: []elastic.Named{{Slot: 1, Pod: "w-1", Node: "n1", Cause: "NodeSlow", Text: "slow"}},
			},
			PendingReplacements: []elastic.Termination{pending},
			Verdict:             &elastic.Verdict{Reason: elastic.ReasonSameFailureTwice, ExitCode: 7, Cause: &c, At: at},
		},
	} {
		status := runStatus(r)
		wire, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		var back v1alpha1.RunStatus
		if err := json.Unmarshal(wire, &back); err != nil {
			t.Fatal(err)
		}
		got := recordOf(&back)
		utc(&got)
		if bytes.Contains(wire, []byte("null")) {
			t.Errorf("%s: the API server takes no null: %s", name, wire)
		}
		if !reflect.DeepEqual(got, r) {
			t.Errorf("%s: got %+v, want %+v", name, got, r)
		}
	}
	if got := recordOf(nil); !reflect.DeepEqual(got, elastic.Record{}) {
		t.Errorf("recordOf(nil) = %+v", got)
	}
}

func utc(r *elastic.Record) {
	for i := range r.Launch.Kept {
		r.Launch.Kept[i].At = r.Launch.Kept[i].At.UTC()
	}
	if r.StartedAt.IsZero() {
		return
	}
	r.Sizes.Since, r.Sizes.At = r.Sizes.Since.UTC(), r.Sizes.At.UTC()
	r.Check.Began, r.Check.Ended = r.Check.Began.UTC(), r.Check.Ended.UTC()
	r.StartedAt, r.Progress.SavedAt = r.StartedAt.UTC(), r.Progress.SavedAt.UTC()
	r.Durable.At, r.Older.At = r.Durable.At.UTC(), r.Older.At.UTC()
	for _, all := range [][]elastic.StoredStep{r.Kept, r.Pinned} {
		for i := range all {
			all[i].At = all[i].At.UTC()
		}
	}
	for _, d := range []*elastic.Termination{
		&r.PendingReplacements[0],
		&r.Recoveries[0].Replaced[0].Termination,
		&r.Recoveries[0].Replaced[1].Termination,
	} {
		d.At, d.Deadline = d.At.UTC(), d.Deadline.UTC()
	}
	p := &r.Recoveries[0].Replaced[1]
	p.ReleasedAt, p.AttachedAt = p.ReleasedAt.UTC(), p.AttachedAt.UTC()
	r.Recoveries[0].DetectedAt, r.Verdict.At = r.Recoveries[0].DetectedAt.UTC(), r.Verdict.At.UTC()
}

// TestNothingIsWrittenAsNull: the API server refuses null for a time, and then stores nothing of the record.
func TestNothingIsWrittenAsNull(t *testing.T) {
	d := elastic.Termination{Slot: 1, Pod: "uid", Name: "p", Cause: "XidFatal", At: time.Now()}
	wire, err := json.Marshal(
		runStatus(
			elastic.Record{
				PendingReplacements: []elastic.Termination{d},
				Recoveries:          []elastic.Recovery{{DetectedAt: time.Now(), Replaced: []elastic.Replacement{{Termination: d}}}},
			},
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(wire), "null") {
		t.Errorf("written is %s", wire)
	}
}
