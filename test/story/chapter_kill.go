package story

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

func (r *run) injected(ctx context.Context) ([]string, error) {
	if err := r.Until(ctx, "both pods running", time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := r.Pods(ctx, Namespace, JobName)
		running := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return err == nil && running == members, fmt.Sprintf("%d of %d running", running, members)
	}); err != nil {
		return nil, err
	}
	pods, err := r.Pods(ctx, Namespace, JobName)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return slot(a) - slot(b) })
	for _, p := range pods {
		r.pods, r.uids = append(r.pods, p.Name), append(r.uids, string(p.UID))
		r.follow(ctx, p.Name, r.steps)
	}
	began := time.Now()
	if err := r.Until(ctx, "first step on all ranks", 2*time.Minute, func(context.Context) (bool, string) {
		return r.steps.Lowest(ranks) > 0, fmt.Sprintf("%d losses, last lines: %q", r.steps.Count(), r.steps.Tail(3))
	}); err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("%d ranks on %d pods took their first step %.0f s after the pods ran", ranks, members, time.Since(began).Seconds())}, nil
}

func slot(p corev1.Pod) int {
	n, _ := strconv.Atoi(p.Annotations["batch.kubernetes.io/job-completion-index"])
	return n
}

var startLine = regexp.MustCompile(`rank (\d+) pid (\d+)`)

// pidOf is the process id, inside its container, of the newest process of a rank.
func (r *run) pidOf(rank int) (int, error) {
	lines := r.steps.Tail(10000)
	slices.Reverse(lines)
	for _, line := range lines {
		if m := startLine.FindStringSubmatch(line); m != nil && m[1] == strconv.Itoa(rank) {
			return strconv.Atoi(m[2])
		}
	}
	return 0, fmt.Errorf("rank %d never printed that it started", rank)
}

func (r *run) killRank(ctx context.Context, rank int, what string) error {
	pid, err := r.pidOf(rank)
	if err != nil {
		return err
	}
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return err
	}
	generation := gang.Status.Run.Generation
	at, err := r.Kill(ctx, Namespace, r.pods[rank/(ranks/members)], Training, harness.Numbered(pid))
	if err != nil {
		return err
	}
	r.Say("  kill -9: %s", what)
	r.kills = append(r.kills, kill{what: "kill -9 " + what, at: at, after: generation})
	return nil
}

// resumed waits until every rank has printed a step after the n-th loss, in a generation above the given one.
func (r *run) resumed(ctx context.Context, above int64, n int, limit time.Duration) error {
	return r.Until(ctx, "all ranks step again", limit, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, JobName)
		if err != nil || gang.Status.Run == nil || gang.Status.Run.Generation <= above {
			return false, fmt.Sprintf("still generation %d, %v", above, err)
		}
		run := gang.Status.Run
		seen := map[int64]bool{}
		for _, l := range r.steps.Since(n) {
			if l.Step > run.RestoreStep && len(run.Recoveries) > 0 && l.Seen.After(run.Recoveries[len(run.Recoveries)-1].DetectedAt.Time) {
				seen[l.Rank] = true
			}
		}
		return len(seen) == ranks && run.State == v1alpha1.RunRunning, fmt.Sprintf("generation %d %s, %d of %d ranks step", run.Generation, run.State, len(seen), ranks)
	})
}

func (r *run) standbysReady(ctx context.Context, limit time.Duration) error {
	err := r.Until(ctx, "a warm standby for every rank", limit, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, JobName)
		if err != nil || gang.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		p := gang.Status.Run.Progress
		return p.Ranks == ranks &&
				p.StandbysReady == ranks, strings.Join(
				append([]string{fmt.Sprintf("%d of %d", p.StandbysReady, p.Ranks)}, p.Notes...),
				"; ",
			)
	})
	if err != nil {
		return fmt.Errorf("%w; standbys: %s", err, r.standbys(context.WithoutCancel(ctx)))
	}
	return nil
}

// eachStandby calls do for each of the job's standbys and their sources.
func (r *run) eachStandby(ctx context.Context, do func(pod string, p harness.Process) error) error {
	for _, pod := range r.pods {
		all, err := r.Processes(ctx, Namespace, pod, Training)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Name != "hf-standby" {
				continue
			}
			if err := do(pod, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// standbys describes the state of the standbys.
func (r *run) standbys(ctx context.Context) string {
	var all []string
	if err := r.eachStandby(ctx, func(pod string, p harness.Process) error {
		all = append(all, fmt.Sprintf("%s/%d %s", pod, p.Inside, p.State))
		return nil
	}); err != nil {
		return err.Error()
	}
	return strings.Join(all, ", ")
}

// killStandbys kills every standby of the job and returns when its Gang shows it.
func (r *run) killStandbys(ctx context.Context) error {
	if err := r.eachStandby(ctx, func(pod string, p harness.Process) error {
		if err := syscall.Kill(p.Host, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing standby %d of pod %s: %w", p.Inside, pod, err)
		}
		return nil
	}); err != nil {
		return err
	}
	return r.Until(ctx, "its standbys are gone", 30*time.Second, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, JobName)
		if err != nil || gang.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		return gang.Status.Run.Progress.StandbysReady == 0, fmt.Sprintf("%d left", gang.Status.Run.Progress.StandbysReady)
	})
}

func (r *run) ranksKilled(ctx context.Context) ([]string, error) {
	began := time.Now()
	if r.WhileWarming != nil {
		if err := r.WhileWarming(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.standbysReady(ctx, 90*time.Second); err != nil {
		return nil, err
	}
	saw := []string{fmt.Sprintf("every rank had a warm standby %.0f s after training began", time.Since(began).Seconds())}
	for _, k := range []struct {
		rank int
		what string
		warm int32 // how many ranks should resume in a standby
	}{
		{1, "rank 1", ranks},
		{2, "rank 2, as soon as the next standbys are there", ranks},
		{0, "rank 0, and every standby before it: all start cold", 0},
	} {
		prepare := func(ctx context.Context) error { return r.standbysReady(ctx, 90*time.Second) }
		if k.warm == 0 {
			prepare = r.killStandbys
		}
		if err := prepare(ctx); err != nil {
			return saw, err
		}
		gang, err := r.gang(ctx, JobName)
		if err != nil {
			return saw, err
		}
		above, n := gang.Status.Run.Generation, r.steps.Count()
		if err := r.killRank(ctx, k.rank, k.what); err != nil {
			return saw, err
		}
		killed := time.Now()
		if err := r.resumed(ctx, above, n, 90*time.Second); err != nil {
			return saw, err
		}
		var last v1alpha1.Recovery
		if err := r.Until(ctx, "the recovery's record is whole", 30*time.Second, func(ctx context.Context) (bool, string) {
			last, err = r.lastRecovery(ctx)
			return err == nil && last.Generation > above && last.FirstStepMs != nil, fmt.Sprintf("generation %d, %v", last.Generation, err)
		}); err != nil {
			return saw, err
		}
		if last.Standbys != k.warm {
			return saw, fmt.Errorf("kill -9 %s: %d of %d ranks went on in a warm standby, not %d", k.what, last.Standbys, ranks, k.warm)
		}
		time.Sleep(time.Until(killed.Add(time.Second)))
	}
	return append(saw, "no pod was re-created and no container restarted"), r.samePods(ctx)
}

// samePods fails if a pod or container of the job was replaced.
func (r *run) samePods(ctx context.Context) error {
	pods, err := r.Pods(ctx, Namespace, JobName)
	if err != nil {
		return err
	}
	if len(pods) != members {
		return fmt.Errorf("the job has %d pods, not %d", len(pods), members)
	}
	for _, p := range pods {
		if !slices.Contains(r.uids, string(p.UID)) {
			return fmt.Errorf("pod %s was made anew", p.Name)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount != 0 {
				return fmt.Errorf("container %s of pod %s restarted %d times", c.Name, p.Name, c.RestartCount)
			}
		}
	}
	return nil
}

func (r *run) agentKilled(ctx context.Context) ([]string, error) {
	gang, err := r.gang(ctx, JobName)
	if err != nil {
		return nil, err
	}
	generation := gang.Status.Run.Generation
	if _, err := r.Kill(ctx, Namespace, r.pods[0], Training, harness.Agent); err != nil {
		return nil, err
	}
	r.Say("  kill -9: the agent of %s", r.pods[0])
	at := r.steps.Lowest(ranks)
	if err := r.Until(ctx, "20 more steps, agent back", 60*time.Second, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, JobName)
		if err != nil {
			return false, err.Error()
		}
		return r.steps.Lowest(ranks) >= at+20 &&
			len(gang.Status.Run.Progress.Attached) == members, fmt.Sprintf("step %d, attached %v", r.steps.Lowest(ranks), gang.Status.Run.Progress.Attached)
	}); err != nil {
		return nil, err
	}
	if gang, err = r.gang(ctx, JobName); err != nil {
		return nil, err
	}
	if gang.Status.Run.Generation != generation {
		return nil, fmt.Errorf("generation %d became %d: ranks were restarted", generation, gang.Status.Run.Generation)
	}
	return []string{"20 steps went by, the generation is the same, a new agent runs the same ranks"}, r.samePods(ctx)
}
