package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
)

// load is how busy the script keeps the cores between kills.
type load struct {
	name string
	// pause is the value of the script's pace page, in seconds; below 0: no pause.
	pause float64
}

var (
	paused = load{"20 ms pause", 0.02}
	busy   = load{"no pause", -1}
	// coasting is the script's pace while standbys warm up for a case's later kills, so that all kills fit into the run's time.
	coasting = load{"coasting", 0.25}
)

// victims is the order of the ranks to kill: all of them, also rank 0.
var victims = []int{1, 3, 0, 2}

const (
	// calm is how long a job trains undisturbed before each kill while its step time is measured.
	calm         = time.Second
	recoverLimit = 90 * time.Second
	warmLimit    = 120 * time.Second
	// neverWait is how long to wait for a system that should never recover: three times what the others take.
	neverWait = 25 * time.Second
	// coastAbove: a longer wait for standbys makes the later ones of a case coast.
	coastAbove = 14 * time.Second
	// redo is the number of tries of one kill if a standby was not used.
	redo = 3
)

// trial is one job that is killed repeatedly.
type trial struct {
	*bench
	system system
	shape  shape
	rec    *lives.Record
	// generation is the newest in the Gang's status before the last kill.
	generation int64
	// rested is when the job last finished recovering, or took its first step; paced is when its pace last changed.
	rested, paced time.Time
	// kills counts the kills of this job, before those of the system's earlier job.
	kills, before int
	// cold: standbys never became ready, so the kills of a plain script are measured without.
	cold bool
	// pace is the present value of the script's pace page; coast: standbys of this load warm up at another pace.
	pace  load
	coast bool
}

func (t *trial) caseName(l load) string { return t.shape.caseName(l) }

func (s shape) caseName(l load) string { return fmt.Sprintf("%s, %s", s.name, l.name) }

// underKills measures one load with so many kills, of the ranks in turn.
func (t *trial) underKills(ctx context.Context, l load, kills int) error {
	t.coast = false
	for done := range kills {
		if err := t.underKill(ctx, l, fmt.Sprintf("kill %d of %d", t.before+done+1, t.plan.kills)); err != nil {
			return err
		}
	}
	return nil
}

// underKill measures one kill. A kill before its standbys has its own figure, and another follows.
func (t *trial) underKill(ctx context.Context, l load, which string) error {
	kase := t.caseName(l)
	for range redo {
		if err := t.setPace(ctx, l); err != nil {
			return err
		}
		took, err := t.warm(ctx, kase, l)
		if err != nil {
			return err
		}
		t.coast = t.coast || took > coastAbove
		if err := t.calm(ctx, kase); err != nil {
			return err
		}
		rank := victims[(t.before+t.kills)%len(victims)]
		t.kills++
		killed, err := t.kill(ctx, rank)
		if err != nil {
			return err
		}
		got, err := t.recovery(ctx, killed, recoverLimit)
		if err != nil {
			return fmt.Errorf("%s, %s, after the kill of rank %d: %w", kase, t.system.name, rank, err)
		}
		t.rested = time.Now()
		cold, err := t.usedColdRank(ctx)
		if err != nil {
			return err
		}
		if cold == "" {
			t.note(kase, got)
			t.w.Say("  %s, %s: %s (rank %d): %.2f s to the first new step", kase, t.system.name, which, rank, got.stepped)
			return nil
		}
		t.results.early(kase, got.stepped)
		t.w.Say("  %s, %s: kill of rank %d before its standbys: %.2f s: %s", kase, t.system.name, rank, got.stepped, cold)
	}
	return fmt.Errorf("%s: standbys reported as ready were not used %d times", kase, redo)
}

// recovery is the cost of one kill: seconds since the kill, each until the last rank.
type recovery struct {
	started, imported, joined, restored, stepped float64
	loadMs                                       float64
	recomputed                                   int64
}

func (t *trial) note(kase string, got recovery) {
	for _, m := range []struct {
		metric, unit string
		value        float64
	}{
		{killToStep, "s", got.stepped}, {"kill_to_start", "s", got.started}, {"kill_to_import", "s", got.imported}, {"kill_to_join", "s", got.joined},
		{restoreTime, "s", got.restored}, {loadMs, "ms", got.loadMs}, {recomputed, "steps", float64(got.recomputed)},
	} {
		if t.shape.plain() && (m.metric == restoreTime || m.metric == loadMs || m.metric == recomputed) {
			continue // a plain script restores nothing
		}
		t.results.Add(kase, t.system.name, m.metric, m.unit, m.value)
	}
}

// warm waits until every rank has a warm standby. The wait is a figure if the script keeps the case's pace meanwhile.
func (t *trial) warm(ctx context.Context, kase string, l load) (time.Duration, error) {
	if t.system.name != systemHoldfast || t.cold {
		return 0, nil
	}
	if t.coast {
		if err := t.setPace(ctx, coasting); err != nil {
			return 0, err
		}
	}
	if err := t.w.Until(ctx, "a warm standby for every rank", warmLimit, t.standbysReady); err != nil {
		if !t.shape.plain() || ctx.Err() != nil {
			return 0, err
		}
		t.cold = true
		t.results.Add(kase, t.system.name, standbyVain, "s", warmLimit.Seconds())
		t.w.Say("  %s, %s: %v; its kills are measured without", kase, t.system.name, err)
		return 0, nil
	}
	ready := time.Now()
	took := ready.Sub(t.rested)
	if t.coast {
		return took, t.setPace(ctx, l)
	}
	metric := standbyReady
	if t.kills == 0 {
		metric = standbyFirst
	}
	t.results.Add(kase, t.system.name, metric, "s", took.Seconds())
	from := t.rested
	if t.paced.After(from) {
		from = t.paced
	}
	for _, e := range t.rec.RatesBetween(from, ready) {
		t.results.Add(kase, t.system.name, warmingMs, "ms", e.StepMs)
	}
	return took, nil
}

func (t *trial) standbysReady(ctx context.Context) (bool, string) {
	run, err := t.run(ctx)
	if err != nil {
		return false, err.Error()
	}
	ranks := int32(t.shape.ranks())
	p := run.Progress
	return run.Generation > t.generation && run.State == v1alpha1.RunRunning && p.Ranks == ranks && p.StandbysReady == ranks,
		fmt.Sprintf("generation %d %s, %d of %d", run.Generation, run.State, p.StandbysReady, p.Ranks)
}

func (t *trial) run(ctx context.Context) (*v1alpha1.RunStatus, error) {
	return lives.Run(ctx, t.w, namespace, t.system.jobName(t.shape))
}

// usedColdRank describes a kill whose standbys were not all ready; "" if they were, or if the system has none.
func (t *trial) usedColdRank(ctx context.Context) (string, error) {
	if t.system.name != systemHoldfast || t.cold {
		return "", nil
	}
	var cold string
	err := t.w.Until(ctx, "the recovery on the Gang", 15*time.Second, func(ctx context.Context) (bool, string) {
		run, err := t.run(ctx)
		if err != nil {
			return false, err.Error()
		}
		if len(run.Recoveries) == 0 {
			return false, "none"
		}
		r := run.Recoveries[len(run.Recoveries)-1]
		cold = ""
		if r.Standbys < r.Ranks {
			cold = fmt.Sprintf("%d of %d ranks continued in a standby", r.Standbys, r.Ranks)
		}
		reached := r.FirstStepMs
		if t.shape.plain() { // its first step may be missing in the Gang
			reached = r.StartMs
		}
		return r.Generation > t.generation && reached != nil, fmt.Sprintf("generation %d", r.Generation)
	})
	return cold, err
}

// calm lets the job train undisturbed and records the times of a step and of a save.
func (t *trial) calm(ctx context.Context, kase string) error {
	from := time.Now()
	if err := t.w.Until(ctx, "steady steps", recoverLimit, func(context.Context) (bool, string) {
		return time.Since(from) >= calm && len(t.rec.RatesBetween(from, time.Now())) > 0, fmt.Sprintf("last line: %q", t.rec.Tail(1))
	}); err != nil {
		return err
	}
	for _, e := range t.rec.RatesBetween(from, time.Now()) {
		t.results.Add(kase, t.system.name, stepMs, "ms", e.StepMs)
		if !t.shape.plain() {
			t.results.Add(kase, t.system.name, "save_ms", "ms", e.SaveMs)
		}
	}
	return nil
}

// kill ends a rank's newest process by SIGKILL and returns the time.
func (t *trial) kill(ctx context.Context, rank int) (time.Time, error) {
	if t.system.holdfast() {
		run, err := t.run(ctx)
		if err != nil {
			return time.Time{}, err
		}
		t.generation = run.Generation
	}
	pid, err := t.hostPID(ctx, rank)
	if err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return at, fmt.Errorf("killing rank %d: %w", rank, err)
	}
	return at, nil
}

func (t *trial) hostPID(ctx context.Context, rank int) (int, error) {
	pod, pid, ok := t.rec.Newest(rank)
	if !ok {
		return 0, fmt.Errorf("rank %d never printed that it started", rank)
	}
	return t.w.HostPID(ctx, namespace, pod, lives.Container, pid)
}

// recovery returns how the job resumes after a kill, in seconds since, each until the last rank.
func (t *trial) recovery(ctx context.Context, killed time.Time, limit time.Duration) (recovery, error) {
	var r lives.Resumption
	err := t.w.Until(ctx, "first new step on all ranks", limit, func(context.Context) (bool, string) {
		var ok bool
		r, ok = t.rec.Resumed(t.shape.ranks(), killed)
		return ok, t.rec.Progress(t.shape.ranks(), killed)
	})
	since := func(at time.Time) float64 { return max(0, at.Sub(killed).Seconds()) }
	got := recovery{since(r.Started), since(r.Imported), since(r.Joined), since(r.Restored), since(r.Stepped), r.LoadMs, r.Recomputed}
	if err != nil {
		return got, fmt.Errorf("%w; the job's last lines: %q", err, t.rec.Tail(6))
	}
	return got, nil
}

// setPace changes the script's pause in every pod, through the page of the memory volume that the script reads after each step.
func (t *trial) setPace(ctx context.Context, l load) error {
	if t.pace == l {
		return nil
	}
	var bits [8]byte
	binary.LittleEndian.PutUint64(bits[:], math.Float64bits(l.pause))
	for pod := range t.shape.pods {
		pid, err := t.hostPID(ctx, pod*t.shape.each)
		if err != nil {
			return err
		}
		if err := writePage(fmt.Sprintf("/proc/%d/root%s/pace", pid, lives.StateAt), bits[:]); err != nil {
			return fmt.Errorf("setting the script's pace: %w", err)
		}
	}
	t.pace, t.paced = l, time.Now()
	return nil
}

func writePage(path string, bits []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bits, 0)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
