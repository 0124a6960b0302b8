package hang

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const (
	// inTime is how long after the last step a verdict is due.
	inTime = time.Minute
	// long is how long a healthy silence lasts at least.
	long = time.Minute
)

const busy, stopped, outside = v1alpha1.ReasonBusy, v1alpha1.ReasonStopped, v1alpha1.CauseWaitsOutside

// TestHang plays all silences on one cluster, a few at a time; those that stop all jobs' leader alone.
func TestHang(t *testing.T) {
	ctx, w, room := t.Context(), start(t.Context(), t), make(chan bool, atOnce)
	var parts sync.WaitGroup
	parts.Go(func() { t.Run("Healthy", func(t *testing.T) { play(ctx, t, w, room, healthy()) }) })
	parts.Go(func() { t.Run("Faults", func(t *testing.T) { play(ctx, t, w, room, faults()) }) })
	parts.Wait()
	t.Run("Losses", func(t *testing.T) { play(ctx, t, w, make(chan bool, 1), losses()) })
}

// healthy silences end by themselves. They are not ended, and are not taken for a fault.
func healthy() []silence {
	return []silence{
		{
			name: "slow-save", what: "one rank saves to slow storage",
			taken: []string{busy}, plays: endsByItself,
		},
		{
			name: "evaluation", what: "one rank evaluates alone",
			taken: []string{busy}, plays: endsByItself,
		},
		{
			name: "starved", what: "a data loader reads slowly",
			taken: []string{busy}, plays: endsByItself,
		},
		{
			name: "debugger", what: "a signal stops one rank, as a debugger does, and continues it",
			taken: []string{stopped}, says: "rank 1 ", plays: continued,
		},
		{
			name: "compiles", what: "a compiler runs for one rank",
			taken: []string{busy}, plays: endsByItself,
		},
		{
			name: "slow-import", what: "one rank imports slowly before it joins",
			taken: []string{busy}, plays: begins,
		},
		{
			name: "late-first-step", what: "one rank prepares data before the first step",
			taken: []string{busy}, plays: begins,
		},
		{
			name: "transformers", framework: "hf.py", what: "the Trainer of transformers evaluates, and then saves to slow storage",
			taken: []string{busy}, plays: endsByItself,
		},
		{
			name: "lightning", framework: "lit.py", what: "the Trainer of Lightning saves to slow storage, and then validates",
			taken: []string{busy}, plays: endsByItself,
		},
	}
}

// faults are ranks that stand still for ever. They get their verdict in a minute, and those that are ended train on in their containers.
func faults() []silence {
	timeout := map[string]string{v1alpha1.AnnotationHangTimeout: "2m"}
	report := map[string]string{v1alpha1.AnnotationHang: "report"}
	memory := map[string]string{v1alpha1.AnnotationStateSize: "1Mi"}
	return []silence{
		{
			name: "deaf-again", what: "one rank is in a call that takes no signal, each time",
			taken: []string{v1alpha1.CauseHang}, says: "rank 3 ", plays: moves,
		},
		{
			name: "deaf", what: "one rank is in a call that takes no signal",
			taken: []string{v1alpha1.CauseHang}, says: "rank 3 ", plays: keepsFiles,
		},
		{
			name: "desync", what: "one rank calls another collective, each time",
			taken: []string{v1alpha1.CauseDesync}, says: "rank 3: broadcast", plays: fails,
		},
		{
			name: "sleeps", what: "one rank sleeps for ever; `hang-timeout: 2m`",
			settings: timeout, taken: []string{outside, v1alpha1.CauseHangTimeout}, says: "rank 3 ", plays: restarts,
		},
		{
			name: "remembers", what: "one rank is in a call that takes no signal; state in memory",
			settings: memory, taken: []string{v1alpha1.CauseHang}, says: "rank 3 ", plays: remembers,
		},
		{
			name: "deadlock", what: "two ranks use two groups in different orders",
			taken: []string{v1alpha1.CauseDeadlock}, plays: restarts,
		},
		{
			name: "leaves", what: "one rank ends with exit code 0, each time",
			taken: []string{v1alpha1.CauseEndedEarly}, says: "rank 3 ", plays: fails,
		},
		{
			name: "reads", what: "one rank reads for ever; `hang-timeout: 2m`",
			settings: timeout, taken: []string{busy, v1alpha1.CauseHangTimeout}, says: "rank 3 ", plays: restarts,
		},
		{
			name: "only-reported", what: "one rank is in a call that takes no signal; `hang: report`",
			settings: report, taken: []string{v1alpha1.CauseHang}, says: "rank 3 ", plays: stays,
		},
		{
			name: "cut", what: "the network between the pods loses all packets, for a while",
			taken: []string{v1alpha1.CauseFabricHang}, plays: cut,
		},
		{
			name: "narrow", what: "the network between the pods passes 10 kbit/s, for a while",
			taken: []string{v1alpha1.CauseFabricHang, busy, v1alpha1.ReasonUnexplained}, plays: narrow,
		},
		{
			name: "storage", what: "one rank reads a file of a FUSE mount that does not answer, for a while",
			taken: []string{outside}, says: "rank 3 ", plays: unanswered,
		},
		{
			name: "storage-of-two", what: "a rank on each node reads a file of a FUSE mount that does not answer, for a while",
			apart: true, taken: []string{v1alpha1.CauseStorageStalls}, says: "rank", plays: unanswered,
		},
		{
			name: "dead-loader", what: "the worker of a data loader stands still",
			taken: []string{outside}, says: "rank 3 ", plays: reported,
		},
		{
			name: "lock", what: "one rank waits for a lock of a C library",
			taken: []string{outside}, says: "rank 3 ", plays: reported,
		},
	}
}

// endsByItself: what moves is named, and the job goes on.
func endsByItself(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.finishes(ctx, t, v1alpha1.ReasonFinished, 0)
}

// begins: ranks that start late are not ended either.
func begins(ctx context.Context, t *testing.T, j *job) {
	j.finishes(ctx, t, v1alpha1.ReasonFinished, 0)
	if j.quiet.IsZero() {
		t.Error("there was no silence")
	}
}

// continued: a signal stops a rank, and it goes on after the verdict.
func continued(ctx context.Context, t *testing.T, j *job) {
	j.steps(ctx, t, 1, 25)
	p := j.rank(ctx, t, 1)
	j.quiet = time.Now()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	j.verdict(ctx, t)
	j.lasts(ctx, t, long)
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	goesOn(ctx, t, j, 0)
}

// goesOn: the gang makes steps again, and its job is complete.
func goesOn(ctx context.Context, t *testing.T, j *job, restarts int) {
	j.until(ctx, t, "the gang makes steps again", func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
		r := g.Status.Run
		return r.Progress.Standstill == nil && r.State == v1alpha1.RunRunning && r.Progress.OptimizerSteps > 0, fmt.Sprintf("%+v", r.Progress)
	})
	j.over(t)
	j.finishes(ctx, t, v1alpha1.ReasonFinished, restarts)
}

// restarts: the verdict ends the ranks, and they train on from where they were.
func restarts(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.steps(ctx, t, 2, 5)
	j.finishes(ctx, t, v1alpha1.ReasonFinished, 1)
}

// keepsFiles: after the restart each pod has files about its ranks: the stacks of those that wait, of rank 3 why it has none, and records.
func keepsFiles(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.steps(ctx, t, 2, 5)
	for rank, want := range []string{"in backward", "in backward", "in backward", "takes no signal"} {
		folders := fmt.Sprintf("/proc/%d/root/run/holdfast/run/hangs/1-*/", j.rank(ctx, t, rank).Host)
		for file, want := range map[string]string{
			fmt.Sprintf("rank-%d.stack.txt", rank): want, fmt.Sprintf("gloo.rank-%d", rank): "", fmt.Sprintf("rank-%d.gloo.json", rank): "{",
		} {
			text, err := oneOf(folders + file)
			if err != nil || text == "" || !strings.Contains(text, want) {
				t.Errorf("%s of rank %d: %v\n%s", file, rank, err, text)
			}
		}
	}
	j.finishes(ctx, t, v1alpha1.ReasonFinished, 1)
}

// oneOf returns the text of the only file with a name of that pattern.
func oneOf(pattern string) (string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("%s: %d files, %v", pattern, len(files), err)
	}
	text, err := os.ReadFile(files[0])
	return string(text), err
}

// remembers: the ranks that restarted continue with the step that they kept in memory.
func remembers(ctx context.Context, t *testing.T, j *job) {
	restarts(ctx, t, j)
	g, err := j.Gang(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	if r := g.Status.Run.Recoveries[0]; r.RestoreStep != 25 || ptr.Deref(r.StepsRecomputed, -1) != 0 {
		t.Errorf("restored step %d, %d steps again, want 25 and 0", r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1))
	}
}

// reported: the verdict is reported. What follows takes longer than a test.
func reported(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.row.Result = "reported"
}

// stays: the verdict is reported, also by further looks, and ends nothing.
func stays(ctx context.Context, t *testing.T, j *job) {
	reported(ctx, t, j)
	j.lasts(ctx, t, 2*long)
	if j.row.Restarts != 0 {
		t.Errorf("%d restarts", j.row.Restarts)
	}
}

// moves: when ranks stand still again, the pod at fault is replaced, and a third time they are only reported.
func moves(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.until(ctx, t, "the third time is only reported", func(ctx context.Context, g *v1alpha1.Gang) (bool, string) {
		return j.HasEvent(ctx, namespace, "Job", j.name, v1alpha1.ReasonStandsStill, "is only reported")
	})
	j.row.Result = "reported"
	g, err := j.Gang(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	now, err := j.Shape(ctx, g)
	if err != nil {
		t.Fatal(err)
	}
	was := j.shape.Assignments
	if now.Assignments[0] != was[0] || now.Assignments[1].UID == was[1].UID || j.row.Restarts != 2 {
		t.Errorf("%d restarts, and pods %+v became %+v; want 2, and another pod of slot 1", j.row.Restarts, was, now.Assignments)
	}
}

// fails: a bug of the script that repeats ends the job.
func fails(ctx context.Context, t *testing.T, j *job) {
	j.verdict(ctx, t)
	j.finishes(ctx, t, v1alpha1.ReasonSameFailureTwice, 1)
}

// cut: packets between the pods are lost.
func cut(ctx context.Context, t *testing.T, j *job) {
	j.steps(ctx, t, 1, 25)
	peer := j.address(ctx, t, 1)
	p := j.rank(ctx, t, 0)
	drop := func(rule string) {
		for _, match := range [][]string{{"INPUT", "-s"}, {"OUTPUT", "-d"}} {
			args := []string{"-t", fmt.Sprint(p.Host), "-n", "iptables", rule, match[0], match[1], peer, "-j", "DROP"}
			if out, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput(); err != nil {
				t.Fatalf("nsenter %v: %v: %s", args, err, out)
			}
		}
	}
	j.quiet = time.Now()
	drop("-A")
	j.verdict(ctx, t)
	drop("-D")
	goesOn(ctx, t, j, 0)
}
