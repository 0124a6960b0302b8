package story

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/test/harness"
)

// python is the interpreter with PyTorch that hack/python.sh prepares.
const python = "/opt/holdfast-python/venv/bin/python3"

const unchangedName = "pytorch-unchanged"

// unchanged plays a job that sets no state size and whose script does not use the client. The job is placed and restarted, and shows why it
// keeps no state. A job with a bug, one whose rank waits for data, and one whose pods are tried start beside it; later chapters report
// their results.
func (r *run) unchanged(ctx context.Context) ([]string, error) {
	r.bugs = begin(func() ([]string, error) { return r.Bug(ctx, corev1.RestartPolicyNever, 1000) })
	r.still = begin(func() ([]string, error) { return r.standsStill(ctx) })
	r.tried = begin(func() ([]string, error) { return r.tries(ctx) })
	if _, err := r.RunKubectl(ctx, "apply", "-k", filepath.Join(r.Source, "examples/pytorch-unchanged")); err != nil {
		return nil, err
	}
	var why string
	if err := r.Until(ctx, "the Gang says why state in memory is off", time.Minute, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, unchangedName)
		if err != nil {
			return false, err.Error()
		}
		c := meta.FindStatusCondition(gang.Status.Conditions, v1alpha1.ConditionStateInMemory)
		if c == nil {
			return false, "no condition"
		}
		why = c.Message
		return c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonNoStateSize, c.Reason
	}); err != nil {
		return nil, err
	}
	steps := NewSteps()
	var pod corev1.Pod
	if err := r.Until(ctx, "it runs", 90*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := r.Pods(ctx, Namespace, unchangedName)
		if err != nil || len(pods) == 0 {
			return false, fmt.Sprint(err)
		}
		pod = pods[0]
		return pod.Status.Phase == corev1.PodRunning, string(pod.Status.Phase)
	}); err != nil {
		return nil, err
	}
	r.follow(ctx, pod.Name, steps)
	if err := r.Until(
		ctx,
		"it steps",
		2*time.Minute,
		func(context.Context) (bool, string) { return steps.Lowest(2) > 2, fmt.Sprint(steps.Tail(3)) },
	); err != nil {
		return nil, err
	}
	other := &run{World: r.World, steps: steps}
	pid, err := other.pidOf(0)
	if err != nil {
		return nil, err
	}
	n := steps.Count()
	if _, err := r.Kill(ctx, Namespace, pod.Name, Training, harness.Numbered(pid)); err != nil {
		return nil, err
	}
	if err := r.Until(ctx, "it steps again", 2*time.Minute, func(context.Context) (bool, string) {
		for _, l := range steps.Since(n) {
			if l.Step == 1 {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d losses since", steps.Count()-n)
	}); err != nil {
		return nil, err
	}
	return []string{"its Gang says: " + why, "rank 0 was killed: it was restarted in place, from the beginning"},
		r.Client().
			Delete(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
				Name:      unchangedName,
				Namespace: Namespace,
			}}, client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// othersTold reports the results of the job whose rank 1 raises the same error repeatedly, and of the job whose pod was refused while the
// controller was unavailable.
func (r *run) othersTold(ctx context.Context) ([]string, error) {
	saw, err := r.bugs.end(ctx)
	if err != nil {
		return saw, err
	}
	late, err := r.late.end(ctx)
	return append(saw, late...), err
}

// Bug checks that a bug in the script ends the job, with the exit code and traceback of the rank that failed first.
func (w *World) Bug(ctx context.Context, policy corev1.RestartPolicy, backoffLimit int32) ([]string, error) {
	job := BugJob(policy, backoffLimit)
	if err := w.Client().Create(ctx, job); err != nil {
		return nil, err
	}
	decided, failed, exit, trail, err := w.fails(ctx, job)
	if err != nil {
		return nil, err
	}
	// An idle machine takes about 3 s and should take at most 10 s, a busy one at most 30 s.
	const limit = 30 * time.Second
	if took := failed.Sub(decided); took > limit {
		return nil, fmt.Errorf("the job's condition was Failed %s after the decision: %s", took, trail)
	}
	if exit != bugExit {
		return nil, fmt.Errorf("the verdict's exit code is %d, the first failing rank's is %d", exit, bugExit)
	}
	for _, kind := range []string{"Job", "Gang"} {
		if err := w.Until(ctx, "an event on the "+kind+" with the traceback", limit, func(ctx context.Context) (bool, string) {
			return w.HasEvent(ctx, Namespace, kind, job.Name, v1alpha1.ReasonSameFailureTwice, bugText)
		}); err != nil {
			return nil, err
		}
	}
	if _, err := w.RunKubectl(ctx, "wait", "gg/"+job.Name, "-n", Namespace, "--for=condition=Failed", "--timeout="+limit.String()); err != nil {
		return nil, err
	}
	if out, err := w.RunKubectl(ctx, "wait", "gg/"+job.Name, "-n", Namespace, "--for=condition=Complete", "--timeout=1s"); err == nil {
		return nil, fmt.Errorf("kubectl wait reports the failed job as complete: %s", out)
	}
	if err := w.During(ctx, "no pod comes again", 5*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, Namespace, job.Name)
		live := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodPending ||
				p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && time.Since(failed) > 3*time.Second {
				live++
			}
		}
		return err == nil && live == 0, fmt.Sprintf("%d live pods, %v", live, err)
	}); err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("restartPolicy %s, backoffLimit %d: Failed %.1f s after the decision (%s), exit code %d, traceback in an event", policy, backoffLimit, failed.Sub(decided).Seconds(), trail, exit)},
		w.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// fails waits until a given-up job is Failed: it returns the times of decision and condition, the exit code, and the events in between.
func (w *World) fails(ctx context.Context, job *batchv1.Job) (decided, failed time.Time, exit int32, trail string, err error) {
	var seen []string
	note := func(what string) {
		if !decided.IsZero() && !slices.ContainsFunc(seen, func(s string) bool { return strings.HasPrefix(s, what) }) {
			seen = append(seen, fmt.Sprintf("%s %.1f s", what, time.Since(decided).Seconds()))
		}
	}
	err = w.Until(ctx, "the job fails", 90*time.Second, func(ctx context.Context) (bool, string) {
		if gang, err := w.gang(ctx, job.Name); err == nil && gang.Status.Run != nil && gang.Status.Run.Verdict != nil && decided.IsZero() {
			decided, exit = gang.Status.Run.Verdict.At.Time, gang.Status.Run.Verdict.ExitCode
		}
		pods, err := w.Pods(ctx, Namespace, job.Name)
		if err != nil {
			return false, err.Error()
		}
		for i, p := range pods {
			note(fmt.Sprintf("pod %d %s", i+1, p.Status.Phase))
		}
		if err := w.Client().Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return false, err.Error()
		}
		for _, c := range job.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				note(string(c.Type))
			}
			if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
				failed = time.Now()
				return !decided.IsZero(), "failed, but no verdict"
			}
		}
		return false, fmt.Sprintf("verdict %v, %s, job %+v", decided, strings.Join(seen, ", "), job.Status)
	})
	return decided, failed, exit, strings.Join(seen, ", "), err
}

// compareLater runs the same script undisturbed on this machine, in the background.
func (r *run) compareLater(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	r.endComparison = func() {
		cancel()
		<-ended
	}
	r.undisturbed = begin(func() ([]Loss, error) {
		defer close(ended)
		return r.Undisturbed(ctx)
	})
}

// Undisturbed runs the example's script under plain torchrun on this machine. The script imports the client, which does nothing without an
// agent.
func (w *World) Undisturbed(ctx context.Context) ([]Loss, error) {
	dir := filepath.Join(w.Source, "examples/pytorch-ddp")
	args, err := exampleArgs(filepath.Join(dir, "job.yaml"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, append([]string{"-m", "torch.distributed.run", "--standalone", fmt.Sprintf("--nproc-per-node=%d", ranks)}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(w.Source, "ckptagent/python"), "PYTHONDONTWRITEBYTECODE=1")
	// torchrun ends its ranks on SIGTERM. If it were killed, the ranks would stay.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 45 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("the undisturbed run: %w: %s", err, tail(out.String(), 2000))
	}
	steps := NewSteps()
	if err := steps.Read(&out); err != nil {
		return nil, err
	}
	return steps.Since(0), nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (r *run) losses(ctx context.Context) ([]string, error) {
	if err := r.Until(ctx, "the job finishes", 4*time.Minute, func(ctx context.Context) (bool, string) {
		var job batchv1.Job
		if err := r.Client().Get(ctx, client.ObjectKey{Namespace: Namespace, Name: JobName}, &job); err != nil {
			return false, err.Error()
		}
		return job.Status.Succeeded == members, fmt.Sprintf("step %d; %s", r.steps.Lowest(ranks), strings.Join(r.steps.Tail(1), ""))
	}); err != nil {
		return nil, err
	}
	if err := r.collect(ctx); err != nil {
		return nil, err
	}
	r.Say("  waiting for the undisturbed run")
	undisturbed, err := r.undisturbed.end(ctx)
	if err != nil {
		return nil, err
	}
	var restarts []int64
	for _, rec := range r.report.Recoveries {
		restarts = append(restarts, rec.RestoreStep)
	}
	if r.report.Losses, err = Compare(r.steps.Since(0), undisturbed, restarts); err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("%d losses of %d ranks, those of recomputed steps included, are equal bit for bit", r.report.Losses.Equal, ranks)}, nil
}

// collect reads the recoveries from the Gang and adds their causes from the story.
func (r *run) collect(ctx context.Context) error {
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return err
	}
	share, known := status.Goodput(gang.Status.Run, time.Now())
	if !known || gang.Status.GoodputPercent == nil {
		return fmt.Errorf("the Gang has no goodput: %+v", gang.Status)
	}
	r.report.Goodput = fmt.Sprintf("%.1f%%", 100*share)
	told := 0
	explained, err := r.Explain(ctx, Namespace, JobName)
	if err != nil {
		return err
	}
	explained = strings.Join(strings.Fields(explained), " ")
	for _, rec := range gang.Status.Run.Recoveries {
		out := Recovery{
			What:            rec.Cause.Code,
			RestoreStep:     rec.RestoreStep,
			StepsRecomputed: ptr.Deref(rec.StepsRecomputed, -1),
			Standbys:        rec.Standbys,
			Ranks:           rec.Ranks,
			Generation:      rec.Generation,
		}
		for _, k := range r.kills {
			if k.after == rec.Generation-1 {
				out.What = k.what
				out.add("detect", float64(rec.DetectedAt.Sub(k.at).Microseconds())/1000)
			}
		}
		for i, ms := range []*int64{
			rec.DecideMs,
			rec.DrainMs,
			rec.StopMs,
			rec.ReplaceMs,
			rec.FetchMs,
			rec.StartMs,
			rec.RestoreMs,
			rec.FirstStepMs,
		} {
			if ms != nil {
				out.add(PhaseNames[i+1], float64(*ms))
			}
		}
		if err := explains(explained, rec.Generation, out); err != nil {
			return err
		}
		r.report.Recoveries = append(r.report.Recoveries, out)
		if rec.Cause.Code != v1alpha1.CausePortConflict { // it costs a generation and is no failure
			told++
		}
	}
	if told != len(r.kills) {
		return fmt.Errorf("the Gang lists %d failures, but %d were caused", told, len(r.kills))
	}
	table, err := r.RunKubectl(ctx, "get", "gangs", "-n", Namespace, JobName)
	if err == nil && (!strings.Contains(table, "GOODPUT%") || !slices.Contains(strings.Fields(table), fmt.Sprint(*gang.Status.GoodputPercent))) {
		err = fmt.Errorf("kubectl get gangs does not show the goodput, %d percent: %s", *gang.Status.GoodputPercent, table)
	}
	return err
}

// explains fails if a recovery is incomplete, or if explain and summary differ.
func explains(explained string, generation int64, rec Recovery) error {
	_, own, found := strings.Cut(explained, fmt.Sprintf("to generation %d:", generation))
	if !found {
		return fmt.Errorf("explain has no recovery to generation %d", generation)
	}
	own, _, _ = strings.Cut(own, " to generation ")
	for _, p := range rec.Phases {
		if line := fmt.Sprintf("%s %.0f ms", p.Name, p.Ms); p.Name != PhaseNames[0] && !strings.Contains(own, line) {
			return fmt.Errorf("explain does not say %q of the recovery to generation %d: %s", line, generation, own)
		}
	}
	for _, name := range []string{"stop", "start", "restore", "first step"} {
		if _, known := rec.phase(name); !known && rec.What != v1alpha1.CausePortConflict {
			return fmt.Errorf("phase %q of the recovery to generation %d is missing (%s)", name, generation, rec.What)
		}
	}
	return nil
}

func (r *Recovery) add(name string, ms float64) {
	r.Phases = append(r.Phases, Phase{Name: name, Ms: ms})
	r.Total += ms
}
