package ckpt

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/internal/golden"
)

// input reads an Input from YAML. Unless the text says otherwise, the record did not change meanwhile.
func input(t *testing.T, text string) Input {
	t.Helper()
	var in Input
	if err := yaml.UnmarshalStrict([]byte(text), &in); err != nil {
		t.Fatal(err)
	}
	if in.Before == nil {
		in.Before = in.Gang
	}
	return in
}

// TestText: each testdata/NAME.yaml has the content of storage and the Gang's record; NAME.txt is the output.
func TestText(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, file, text string) {
		r := Of(input(t, text))
		got := r.List(false)
		if r.Verified {
			got = r.Verification(false)
		}
		for _, c := range got {
			if c != '\n' && !unicode.IsPrint(c) {
				t.Errorf("%q is nothing that prints", c)
			}
		}
		golden.File(t, golden.Beside(file, ".txt"), got)
		b, err := json.Marshal(r)
		if err != nil || !strings.Contains(string(b), `"folders":[`) {
			t.Errorf("as JSON: %s, %v", b, err)
		}
	})
}

// world has four ranks in two pods. Step 20 is durable; step 10 is the older durable step.
const world = `
At: "2026-03-01T12:00:00Z"
Source: pod train-0
Gang:
  metadata: {namespace: team-a, name: train}
  spec: {members: 2, jobRef: {kind: Job, name: train, uid: u-1}, storage: {claim: steps, intervalSeconds: 60}}
  status:
    run:
      generation: 2
      restarts: 1
      progress: {ranks: 4}
      durable: {step: 20, generation: 2, at: "2026-03-01T11:59:00.000000Z"}
      older: {step: 10, generation: 1, at: "2026-03-01T11:58:00.000000Z"}
Storage:
  version: 1
  folders:
  - name: train-u-1
    steps:
    - {step: 20, generation: 2, ranks: 4, bytes: 4, manifest: ok, good: 4, files: [{rank: 0, ranks: 4, status: ok, bytes: 4}]}
    - {step: 10, generation: 1, ranks: 4, bytes: 4, manifest: ok, good: 4, files: [{rank: 0, ranks: 4, status: ok, bytes: 4}]}
`

// restoredOf returns the step that would be restored; 0: none.
func restoredOf(r Report) (step int64) {
	for _, s := range r.Folders[0].Steps {
		if s.Restored {
			step = s.Step.Step
		}
	}
	return step
}

func bad(rank uint32, status inspect.Status) []inspect.Run {
	runs := []inspect.Run{{Rank: rank, Ranks: 1, Status: status}}
	if rank > 0 {
		runs = append([]inspect.Run{{Ranks: int(rank), Status: inspect.OK}}, runs...)
	}
	if rest := 3 - int(rank); rest > 0 {
		runs = append(runs, inspect.Run{Rank: rank + 1, Ranks: rest, Status: inspect.OK})
	}
	return runs
}

// TestWhatWouldBeRestored: only recorded, complete steps count, whatever else is in storage.
func TestWhatWouldBeRestored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Input)
		step   int64
		wrong  int
	}{
		"the durable step": {func(*Input) {}, 20, 0},
		"the older one, as a file of the newer is incomplete": {func(in *Input) {
			s := &in.Storage.Folders[0].Steps[0]
			s.Files, s.Good, s.Bad = bad(3, inspect.Torn), 3, 1
		}, 10, 1},
		"the older one, as the newer is missing": {func(in *Input) {
			in.Storage.Folders[0].Steps = in.Storage.Folders[0].Steps[1:]
		}, 10, 1},
		"none, as both are incomplete": {func(in *Input) {
			for i := range in.Storage.Folders[0].Steps {
				s := &in.Storage.Folders[0].Steps[i]
				s.Files, s.Good, s.Bad = bad(uint32(i), inspect.WrongChecksum), 3, 1
			}
		}, 0, 2},
		"the durable one although a newer is complete and not recorded": {func(in *Input) {
			s := in.Storage.Folders[0].Steps[0]
			s.Step = 30
			in.Storage.Folders[0].Steps = append([]inspect.Step{s}, in.Storage.Folders[0].Steps...)
		}, 20, 0},
		"copies of drained pods, if all ranks have one": {func(in *Input) { drained(in, 4) }, 30, 0},
		"the durable one, if a rank has none":           {func(in *Input) { drained(in, 2) }, 20, 0},
		"the durable one, if a copy is lost": {func(in *Input) {
			drained(in, 4)
			s := &in.Storage.Folders[0].Steps[0]
			s.Files, s.Good = s.Files[:0], 0
		}, 20, 4},
		"the durable one of a gang that has not reported its size": {func(in *Input) {
			in.Gang.Status.Run.Progress.Ranks = 0
		}, 20, 0},
		"none of a gang of another size": {func(in *Input) {
			in.Gang.Status.Run.Progress.Ranks = 8
		}, 0, 0},
		"a step written meanwhile is not missing": {func(in *Input) {
			later := in.Gang.DeepCopy()
			later.Status.Run.Older, later.Status.Run.Durable = later.Status.Run.Durable, &v1alpha1.StoredStep{Step: 30, Generation: 2}
			in.Gang = later
		}, 20, 0},
		"a step removed meanwhile is no fault": {func(in *Input) {
			s := &in.Storage.Folders[0].Steps[1]
			s.Manifest, s.Removed, s.Good, s.Bad, s.Files = inspect.Missing, true, 3, 1, bad(0, inspect.Missing)
		}, 20, 0},
		"nothing is recorded": {func(in *Input) {
			in.Gang.Status.Run.Durable, in.Gang.Status.Run.Older = nil, nil
		}, 0, 0},
	} {
		in := input(t, world)
		c.change(&in)
		if r := Of(in); restoredOf(r) != c.step || len(r.Wrong) != c.wrong {
			t.Errorf("%s: step %d, wrong is %q", name, restoredOf(r), r.Wrong)
		}
	}
}

// drained: drained pods have copied step 30 of the first ranks.
func drained(in *Input, ranks int) {
	s := inspect.Step{
		Step:       30,
		Generation: 2,
		Ranks:      4,
		Bytes:      4,
		Manifest:   inspect.Missing,
		Good:       ranks,
		Files:      []inspect.Run{{Ranks: ranks, Status: inspect.OK}},
	}
	in.Storage.Folders[0].Steps = append([]inspect.Step{s}, in.Storage.Folders[0].Steps...)
	in.Gang.Status.Run.Copies = []v1alpha1.RankCopy{{Ranks: int32(ranks), Step: 30, Generation: 2}}
}

// TestVerifyOfOneStep: the output makes no statement on steps that were not read.
func TestVerifyOfOneStep(t *testing.T) {
	in := input(t, world)
	in.Storage.Verified, in.Step = true, 10
	in.Storage.Folders[0].Steps = in.Storage.Folders[0].Steps[1:]
	r := Of(in)
	if text := r.Verification(false); r.Wrong != nil || strings.Contains(text, "20") || strings.Contains(text, "go on from") ||
		!strings.Contains(text, "is intact") {
		t.Errorf("wrong is %q:\n%s", r.Wrong, text)
	}
	in.Step, in.Storage.Folders[0].Steps = 15, nil
	if r := Of(in); len(r.Wrong) != 1 || !strings.Contains(r.Wrong[0], "step 15 is not in storage") {
		t.Errorf("of a step that is not there: %q", r.Wrong)
	}
	in = input(t, world)
	in.Storage.Verified, in.Storage.Notes = true, []string{"gen-3: more names than are looked at"}
	if r := Of(in); len(r.Wrong) != 1 {
		t.Errorf("where not all was looked at: %q", r.Wrong)
	}
}

// TestParse: an agent's report is accepted only if a folder could have that content.
func TestParse(t *testing.T) {
	good := `{"version":1,"folders":[{"name":"a","steps":[{"step":1,"generation":1,"manifest":"ok","files":[{"rank":0,"ranks":2,"status":"ok"},{"rank":5,"ranks":1,"status":"torn","why":"a\u001b[2Jb"}]}]}]}`
	s, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if why := Clean(s).Folders[0].Steps[0].Files[1].Why; why != `a\x1b[2Jb` {
		t.Errorf("%q would be obeyed", why)
	}
	for name, change := range map[string][2]string{
		"no JSON":           {good, "usage: holdfast-agent"},
		"another version":   {`"version":1`, `"version":2`},
		"two jobs":          {`"folders":[`, `"folders":[{"name":"b"},`},
		"a status":          {`"torn"`, `"fine"`},
		"a manifest":        {`"manifest":"ok"`, `"manifest":""`},
		"ranks that cross":  {`"rank":5`, `"rank":1`},
		"no ranks":          {`"ranks":1,`, `"ranks":0,`},
		"many ranks":        {`"ranks":1,`, `"ranks":999999999,`},
		"a negative figure": {`"generation":1`, `"generation":-1`},
		"a negative branch": {`"generation":1`, `"generation":1,"branch":-1`},
		"a negative count":  {`"files":`, `"good":-1,"files":`},
	} {
		if _, err := Parse([]byte(strings.Replace(good, change[0], change[1], 1))); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
