package status

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// Job is what is known of a gang's job.
type Job struct {
	UID      types.UID
	Admitted settings.Job
	State    kinds.State
	// Queue is its queue of Kueue; "": none.
	Queue string
}

// end returns how the job itself ended.
func (j Job) end() (ended, failed bool, message string) {
	return j.State.Final, j.State.Final && j.State.Failed, j.State.Message
}

// JobGang is what Gang, job and pods show about a gang now.
type JobGang struct {
	View View
	// Members has one entry per slot that a pod holds, possibly only for the first slots (bounds.go).
	Members []v1alpha1.MemberStatus
	// Notes are the notes of admission and agents, and about refused evictions of replaced pods, each once, sorted.
	Notes []string
}

// GatherJobGang combines what is known of a job's gang. Pods of other jobs are left out. Of two pods in one slot the one counts that is not
// terminating, or else the newer one.
func GatherJobGang(g *v1alpha1.Gang, job Job, pods []corev1.Pod) JobGang {
	members := job.Admitted.Members
	out := JobGang{View: View{
		Size:     int(members),
		Min:      int(g.Spec.MinPods),
		Unit:     int(g.Spec.PodsUnit),
		Queue:    job.Queue,
		State:    stateFeature(job.Admitted.Settings),
		Standbys: standbyFeature(job.Admitted.Settings),

		Unwatched: job.Admitted.Settings.Hang == v1alpha1.HangOff,
	}}
	if g.Status.Run != nil {
		out.View.Run = *g.Status.Run
	}
	if g.Status.Placement != nil {
		out.View.Answer = *g.Status.Placement
	}
	out.View.JobEnded, out.View.JobFailed, out.View.JobMessage = job.end()
	holders := membership.Holders(job.UID, int(members), pods)
	notes, attached := map[string]bool{}, map[int32]bool{}
	if run := g.Status.Run; run != nil {
		for _, slot := range run.Progress.Attached {
			attached[slot] = true
		}
	}
	for slot := range members {
		pod := holders[slot]
		if pod == nil {
			continue
		}
		ranks, said := injected(pod)
		for _, n := range said {
			notes[n] = true
		}
		if !membership.Gone(pod) || out.View.JobEnded { // a pod that has ended stays listed
			out.View.Members = append(out.View.Members, MemberView{Slot: int(slot), Pod: pod.Name, Node: pod.Spec.NodeName})
		}
		out.Members = append(
			out.Members,
			v1alpha1.MemberStatus{Slot: slot, Pod: pod.Name, Node: pod.Spec.NodeName, Ranks: ranks, Attached: attached[slot]},
		)
	}
	if run := g.Status.Run; run != nil {
		for _, n := range run.Progress.Notes {
			notes[n] = true
		}
	}
	for i := range pods {
		if why := pods[i].Annotations[v1alpha1.AnnotationEvictionRefused]; why != "" && membership.Replaced(&pods[i]) {
			notes[fmt.Sprintf("pod %s on node %s was replaced but its eviction is refused: %s", pods[i].Name, pods[i].Spec.NodeName, why)] = true
		}
	}
	for n := range notes {
		out.Notes = append(out.Notes, n)
	}
	sort.Strings(out.Notes)
	out.Members, out.Notes = first(out.Members, memberBytes, memberSize), notesOf(out.Notes)
	return out
}

// injected returns what the webhook recorded on the pod.
func injected(pod *corev1.Pod) (ranks int32, notes []string) {
	text := pod.Annotations[v1alpha1.AnnotationInjection]
	if text == "" {
		return 0, []string{"pod " + pod.Name + " was not injected"}
	}
	var done v1alpha1.Injection
	if err := json.Unmarshal([]byte(text), &done); err != nil {
		return 0, []string{fmt.Sprintf("pod %s: its annotation %s cannot be decoded: %v", pod.Name, v1alpha1.AnnotationInjection, err)}
	}
	return done.Ranks, done.Notes
}

func stateFeature(s settings.Settings) Feature {
	if s.StateBytes == 0 {
		return Feature{Reason: v1alpha1.ReasonNoStateSize, Message: "no state is kept in memory, because the job has no annotation " + v1alpha1.AnnotationStateSize +
			`; to turn it on create the job with the size of what one rank saves, such as "40Gi"`}
	}
	copies := "three"
	if s.Slots == 2 {
		copies = "two"
	}
	return Feature{On: true, Reason: v1alpha1.ReasonSizeAnnotated,
		Message: "each rank has room for " + copies + " copies of " + resource.NewQuantity(s.StateBytes, resource.BinarySI).String() + " in memory"}
}

func standbyFeature(s settings.Settings) Feature {
	if !s.Standbys {
		return Feature{Reason: v1alpha1.ReasonStandbysOff, Message: "the job's annotation " + v1alpha1.AnnotationStandbys + ` is "off"`}
	}
	return Feature{On: true}
}

// endedText is the text between two generations, where no pod must be replaced.
const endedText = "ended; the next one waits for all agents"

// trouble returns the text on what is being repaired; "": the missing members already say it.
func trouble(r *v1alpha1.RunStatus) string {
	switch {
	case len(r.PendingReplacements) > 0:
		return pendingText(r.PendingReplacements[0], max(len(r.PendingReplacements), int(r.PendingPods)))
	case r.State == v1alpha1.RunHalting && r.Progress.Waits != "", strings.HasPrefix(r.Progress.Waits, v1alpha1.ReasonStepUnreadable):
		return r.Progress.Waits
	case r.State == v1alpha1.RunHalting:
		return "a rank failed; its other processes are being ended"
	case r.State == v1alpha1.RunForming && r.Generation == 0 && r.Progress.UnprotectedPods == 0 && strings.Contains(r.Progress.Waits, "launcher"):
		return r.Progress.Waits + ": its container must run torchrun or python -m torch.distributed.run"
	case r.State == v1alpha1.RunForming && r.Generation == 0:
		return r.Progress.Waits
	case r.State == v1alpha1.RunForming:
		return endedText
	}
	return ""
}

// pendingText returns how many pods are to be replaced, and the first one with its cause.
func pendingText(d v1alpha1.Termination, all int) string {
	text := "pod " + d.Pod
	if d.Node != "" {
		text += " on node " + d.Node
	}
	text += " must be replaced: " + d.Cause
	if n := all - 1; n > 0 {
		text += fmt.Sprintf("; %d more", n)
	}
	return text
}

func verdictText(d *v1alpha1.Verdict) string {
	if d.Cause == nil {
		return fmt.Sprintf("ended with exit code %d", d.ExitCode)
	}
	text := fmt.Sprintf("ended with exit code %d: %s, rank %d in slot %d", d.ExitCode, d.Cause.Code, d.Cause.Rank, d.Cause.Slot)
	if d.Cause.Cascade > 0 {
		text += fmt.Sprintf("; %d further ranks ended because of it", d.Cause.Cascade)
	}
	return text
}
