//go:build linux

package checkpoint

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/trainer"
)

// TestGoesOnWithFewer: of three pods with torch one is lost, and no node is there for another one. The others go on from their memory. A
// new pod gets its state from them, at a step that all have finished. Then the pod with rank 0 is lost.
func TestGoesOnWithFewer(t *testing.T) {
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		t.Skipf("TORCH IS MISSING at %s (%v): going on with fewer pods is NOT tested here", python, err)
	}
	const members = 3
	script, log := trainer.File(t, trainer.Torch), filepath.Join(t.TempDir(), "log")
	c := coordtest.Start(t)
	env := map[string]string{"HOLDFAST_RANKS": "1", "HOLDFAST_STATE_BYTES": fmt.Sprint(1 << 20), "HOLDFAST_STANDBYS": "off", "HOLDFAST_GRACE_SECONDS": "5"}
	var pods []*pod
	var names []string
	for i := range members {
		names = append(names, fmt.Sprintf("pod-%d", i))
		pods = append(pods, startPod(t, c, names[i], env, python, "-m", "torch.distributed.run", fmt.Sprintf("--nnodes=%d", members),
			"--nproc-per-node=1", fmt.Sprintf("--node-rank=%d", i), script, log, "1000000", "0.05"))
	}
	g := c.LeadElastic(1, names...)
	trains := func(generation int64, out ...elastic.Slot) elastic.Record {
		t.Helper()
		var r elastic.Record
		eventually.Holds(t, fmt.Sprintf("generation %d trains without %v", generation, out), func() (bool, any) {
			r = g.Record()
			return r.Generation == generation && slices.Equal(r.Out, out) && r.Progress.SavedStep >= r.RestoreStep+3,
				fmt.Sprintf("generation %d %s without %v, saved %d after %d, waits: %s", r.Generation, r.Phase, r.Out, r.Progress.SavedStep,
					r.RestoreStep, r.Progress.Waits)
		})
		return r
	}
	lose := func(slot int) {
		t.Helper()
		pods[slot].lose(t)
		if err := g.Lose(t.Context(), names[slot]); err != nil {
			t.Fatal(err)
		}
	}
	saved := trains(1).Progress.SavedStep
	lose(1)
	fewer := trains(2, 1)
	if fewer.RestoreStep < saved || !strings.Contains(fewer.Progress.Fewer, "goes on with 2 of 3 pods: no node for slot 1 (no node)") {
		t.Errorf("goes on from %d, all held %d: %s", fewer.RestoreStep, saved, fewer.Progress.Fewer)
	}
	if err := g.Return(t.Context(), names[1]); err != nil {
		t.Fatal(err)
	}
	pods[1].start()
	all := trains(3)
	if r := all.Recoveries[len(all.Recoveries)-1]; r.Cause.Code != cause.GangGrows || r.StepsRecomputed != 0 || !r.ReachedKnown {
		t.Errorf("the pod was taken in by %+v", r)
	}
	lose(0)
	last := trains(4, 0)
	for _, r := range last.Recoveries {
		t.Logf("generation %d after %s: from step %d, %d again, %s", r.Generation, r.Cause.Code, r.RestoreStep, r.StepsRecomputed, r.Total())
		if r.FirstStep <= 0 {
			t.Errorf("no time from the start of its ranks to their first step: %+v", r)
		}
	}
	starts, states := readStarts(t, log)
	for generation, want := range map[int64]elastic.Record{2: fewer, 3: all, 4: last} {
		n := members - len(want.Out)
		if got := starts[generation]; len(got) != n || slices.ContainsFunc(got, func(step int64) bool { return step != want.RestoreStep }) {
			t.Errorf("in generation %d ranks start from %v, want %d from step %d", generation, got, n, want.RestoreStep)
		}
		if got := states[generation]; len(got) != n || len(slices.Compact(got)) != 1 {
			t.Errorf("in generation %d ranks begin with different states: %v", generation, got)
		}
	}
}

// readStarts returns the steps from which ranks started, and the digests of all tensors that they held then, by generation.
func readStarts(t *testing.T, log string) (starts map[int64][]int64, states map[int64][]string) {
	t.Helper()
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	starts, states = map[int64][]int64{}, map[int64][]string{}
	for line := range strings.Lines(string(raw)) {
		var generation, rank, step int64
		if _, err := fmt.Sscanf(line, "%d %d start %d\n", &generation, &rank, &step); err == nil {
			starts[generation] = append(starts[generation], step)
		}
		var state string
		if _, err := fmt.Sscanf(line, "%d %d holds %d %s\n", &generation, &rank, &step, &state); err == nil {
			states[generation] = append(states[generation], state)
		}
	}
	return starts, states
}
