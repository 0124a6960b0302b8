package status

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/observe"
	"holdfast.dev/holdfast/internal/membership"
)

// observedNote explains on the Gang why it shows so little.
const observedNote = "the job is observed (" + v1alpha1.AnnotationMode + ": " + v1alpha1.ModeObserve + "): its pods are left unchanged"

// Observed is what is known of a gang that is only observed.
type Observed struct {
	JobGang
	Findings []observe.Finding
}

// GatherObserved combines what the pods of an observed Job show with the outages of nodes by name and the durations of other gangs'
// recoveries. Its findings are the last of its notes.
func GatherObserved(job Job, pods []corev1.Pod, outages map[string]v1alpha1.NodeOutage, known observe.Figures) Observed {
	members := job.Admitted.Members
	out := Observed{JobGang: JobGang{View: View{Size: int(members), Observed: true}}}
	out.View.JobEnded, out.View.JobFailed, out.View.JobMessage = job.end()
	own := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		owner := membership.OwningJob(&p)
		return owner == nil || owner.UID != job.UID
	})
	holders := membership.WatchedHolders(int(members), own)
	for slot := range members {
		pod := holders[slot]
		if pod == nil {
			continue
		}
		if !membership.Gone(pod) || out.View.JobEnded {
			out.View.Members = append(
				out.View.Members,
				MemberView{Slot: int(slot), Pod: pod.Name, Node: pod.Spec.NodeName, Running: !running(pod).IsZero()},
			)
		}
		out.Members = append(out.Members, v1alpha1.MemberStatus{Slot: slot, Pod: pod.Name, Node: pod.Spec.NodeName})
	}
	out.Members = first(out.Members, memberBytes, memberSize)
	sort.Slice(own, func(a, b int) bool { return own[a].CreationTimestamp.Before(&own[b].CreationTimestamp) })
	var failures []observe.Failure
	for i := range own {
		failures = append(failures, failuresOf(own, i, outages)...)
	}
	out.Findings = observe.Of(failures, known)
	out.Notes = []string{observedNote}
	for _, f := range out.Findings {
		out.Notes = append(out.Notes, f.Text())
	}
	return out
}

// failuresOf returns the failures that pod i, of all pods of the Job by age, shows.
func failuresOf(pods []corev1.Pod, i int, outages map[string]v1alpha1.NodeOutage) []observe.Failure {
	pod := &pods[i]
	var failures []observe.Failure
	for _, c := range pod.Status.ContainerStatuses {
		if end := c.LastTerminationState.Terminated; end != nil && end.ExitCode != 0 {
			failures = append(
				failures,
				observe.Failure{Pod: pod.Name, Node: pod.Spec.NodeName, Cause: ended(end), At: end.FinishedAt.Time, Back: running(pod)},
			)
		}
	}
	switch o, out := outages[pod.Spec.NodeName]; {
	case pod.Status.Phase == corev1.PodFailed:
		f := observe.Failure{Pod: pod.Name, Node: pod.Spec.NodeName, Cause: "failed", At: pod.CreationTimestamp.Time, Back: successor(pods[i+1:], pod)}
		for _, c := range pod.Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil && end.FinishedAt.Time.After(f.At) {
				f.At, f.Cause = end.FinishedAt.Time, ended(end)
			}
		}
		if why := disrupted(pod); why != "" {
			f.Kind, f.Cause = observe.Replace, "was disrupted ("+why+")"
		}
		failures = append(failures, f)
	case out && o.Cause == v1alpha1.CauseEvictedByHand: // planned: nothing has failed
	case o.Pod != "" && o.Pod != string(pod.UID): // the decision is about another pod
	case out && o.Decision != v1alpha1.DecisionExclude && pod.Status.Phase == corev1.PodRunning:
		failures = append(
			failures,
			observe.Failure{
				Kind:  observe.Replace,
				Pod:   pod.Name,
				Node:  pod.Spec.NodeName,
				Cause: "was on a sick node (" + o.Cause + ")",
				At:    o.Since.Time,
			},
		)
	}
	return failures
}

func ended(end *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("ended with exit code %d", end.ExitCode)
	if end.Reason != "" && end.Reason != "Error" {
		text += " (" + end.Reason + ")"
	}
	return text
}

// disrupted returns why something other than its own containers ended the pod; empty: nothing did.
func disrupted(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return cmp.Or(c.Reason, string(c.Type))
		}
	}
	return ""
}

// running returns since when all containers of a pod run; zero: they do not.
func running(pod *corev1.Pod) time.Time {
	var since time.Time
	if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 {
		return since
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running == nil {
			return time.Time{}
		}
		if at := c.State.Running.StartedAt.Time; at.After(since) {
			since = at
		}
	}
	return since
}

// successor returns when the next pod in the same slot ran; zero: not yet, or the slots are unknown.
func successor(younger []corev1.Pod, of *corev1.Pod) time.Time {
	slot, ok := membership.Index(of)
	for i := range younger {
		if other, known := membership.Index(&younger[i]); ok && known && other == slot {
			return running(&younger[i])
		}
	}
	return time.Time{}
}

// RecoveryFigures returns the durations of all completed recoveries in the status of these gangs.
func RecoveryFigures(gangs []v1alpha1.Gang) observe.Figures {
	var known observe.Figures
	for i := range gangs {
		run := gangs[i].Status.Run
		if run == nil {
			continue
		}
		for _, r := range run.Recoveries {
			total, whole := recoveryTime(&r)
			switch {
			case !whole:
			case len(r.Replaced) > 0:
				known.Replacements = append(known.Replacements, total)
			default:
				known.Restarts = append(known.Restarts, total)
			}
		}
	}
	return known
}

// recoveryTime returns how long a recovery took, from the first report of the failure to the first new step; whole is false before that
// step.
func recoveryTime(r *v1alpha1.Recovery) (total time.Duration, whole bool) {
	phases := []*int64{r.DecideMs, r.DrainMs, r.StopMs, r.ReplaceMs, r.FetchMs, r.CheckMs, r.StartMs, r.RestoreMs, r.FirstStepMs}
	if r.DrainMs != nil { // which holds the decision
		phases[0] = nil
	}
	for _, ms := range phases {
		if ms != nil {
			total += time.Duration(*ms) * time.Millisecond
		}
	}
	return total, r.FirstStepMs != nil
}
