//go:build linux

package launchers

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/eventually"
)

// hooks are the trainers with a hook in the client, each with two ranks. The scripts resume only by the hook.
var hooks = []row{
	{name: "transformers", command: "torchrun --nproc-per-node=2 {scripts}/hooked_hf.py"},
	{name: "lightning", command: "torchrun --nproc-per-node=2 {scripts}/hooked_lit.py"},
	{name: "deepspeed, ZeRO stage 0", command: "deepspeed --num_gpus 2 {scripts}/hooked_speedy.py --stage 0"},
	{name: "deepspeed, ZeRO stage 1", command: "deepspeed --num_gpus 2 {scripts}/hooked_speedy.py --stage 1"},
	{name: "deepspeed, ZeRO stage 2", command: "deepspeed --num_gpus 2 {scripts}/hooked_speedy.py --stage 2"},
}

// client is a folder with the client but without the site hook.
func client(t *testing.T) string {
	t.Helper()
	from, err := filepath.Abs("../../ckptagent/python/holdfast")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(from, filepath.Join(dir, "holdfast")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHooks: all ranks of a trainer are killed during training, twice. With -update it writes the table of the page.
func TestHooks(t *testing.T) {
	python(t)
	results := map[string]map[string]string{}
	for _, r := range hooks {
		t.Run(r.name, func(t *testing.T) { // subtests that -run leaves out do not run
			results[r.name] = map[string]string{"kills": "**no**"}
			kills(t, r)
			if !t.Failed() {
				results[r.name]["kills"] = "yes"
			}
		})
	}
	if *update {
		trainers.write(t, results)
	}
}

// kills: the trainer resumes from memory each time, and all its printed losses equal those of an undisturbed run.
func kills(t *testing.T, r row) {
	alone := newLesson(t, "PYTHONPATH="+client(t))
	out, errs, code := plain(t, alone.dir, alone.env, r.argv(r.command, 0)...)
	want := alone.losses()
	if code != 0 || want[fmt.Sprint(steps)] == "" {
		t.Fatalf("without an agent it ends with code %d after %v:\n%s\n%s", code, want, out, errs)
	}
	g := start(t, r, "LESSON_PACE=0.2", held, "HOLDFAST_STATE_BYTES=4194304", "HOLDFAST_RANKS=2")
	first := g.killAll(7, 0, 0)
	g.killAll(13, first, 3) // on a busy machine the newest steps may not be sealed yet
	g.release()
	g.finish(0)
	if got := g.losses(); !maps.Equal(got, want) {
		t.Errorf("losses %v\nundisturbed %v", got, want)
	}
	if restarts, from := g.d.Restarts(), g.d.RestoreStep(); restarts != 2 || from < 8 {
		t.Errorf("%d restarts, the last one from step %d, want 2 and at least 8", restarts, from)
	}
	g.redone(5)
	if a, b := checkpoints(t, g.dir), checkpoints(t, alone.dir); a != b {
		t.Errorf("it left the checkpoints %q, without an agent %q", a, b)
	}
}

// killAll kills all ranks of a generation above the given one once it has finished steps, among them the given one. The generation must
// have started from the given step or a later one. killAll returns the generation.
func (g *run) killAll(step int, above, from uint64) (generation uint64) {
	g.t.Helper()
	before := len(g.lines())
	g.at(step)
	var pids []int32
	eventually.Holds(g.t, "steps of a new generation and the pids of its ranks", func() (bool, any) {
		pids = pids[:0]
		r := g.c.Report("pod-0")
		for _, rank := range r.GetRank() {
			if rank.Pid != 0 {
				pids = append(pids, rank.Pid)
			}
		}
		generation = r.GetGeneration()
		return r.GetState() == v1.State_STATE_RUNNING && generation > above && len(pids) == 2 && len(g.lines()) > before, r
	})
	if at := g.d.RestoreStep(); at < from {
		g.t.Errorf("before step %d it had started from step %d, want %d at least", step, at, from)
	}
	for _, pid := range pids {
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			g.t.Fatalf("killing a rank: %v", err)
		}
	}
	return generation
}

// lines are the log lines with losses, in order.
func (g *run) lines() []string {
	raw, _ := os.ReadFile(filepath.Join(g.dir, "losses"))
	return slices.Collect(strings.Lines(string(raw)))
}

// redone checks that after each of two kills only few steps were repeated, and none of the first ones.
func (g *run) redone(few int) {
	g.t.Helper()
	times, again := map[string]int{}, 0
	for _, line := range g.lines() {
		step, _, _ := strings.Cut(line, " ")
		times[step]++
	}
	for step := 1; step <= steps; step++ {
		again += times[fmt.Sprint(step)] - 1
	}
	if times["1"] != 1 || times["2"] != 1 || again > 2*few {
		g.t.Errorf("%d steps were done again, want %d at most and neither of the first two: %v", again, 2*few, times)
	}
}

// checkpoints are the names of the framework's own checkpoints.
func checkpoints(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "own", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return strings.Join(found, " ")
}

// TestHooksRefuse: a hook refuses by name what it cannot keep, and refuses nothing without an agent.
func TestHooksRefuse(t *testing.T) {
	bin := python(t)
	tests, err := filepath.Abs("../../ckptagent/python")
	if err != nil {
		t.Fatal(err)
	}
	l := newLesson(t, "PYTHONPATH="+tests)
	script, err := filepath.Abs("scripts/refused.py")
	if err != nil {
		t.Fatal(err)
	}
	if out, errs, code := plain(t, l.dir, l.env, bin, script); code != 0 {
		t.Errorf("exit code %d:\n%s\n%s", code, out, errs)
	}
}
