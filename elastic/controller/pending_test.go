package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// member returns the pod of a slot, with this name, on a node, created at noon.
func member(name string, slot int, node string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(noon),
			Labels: map[string]string{v1alpha1.LabelGang: "train", batchv1.JobCompletionIndexAnnotation: fmt.Sprint(slot),
				"controller-uid": "job-uid", batchv1.ControllerUidLabel: "job-uid", "app": "llama"},
			Annotations:     map[string]string{v1alpha1.AnnotationGangSlot: fmt.Sprint(slot)},
			Finalizers:      []string{batchv1.JobTrackingFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job-uid", Controller: ptr.To(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: node, Containers: madeFor("job-uid")},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

// madeFor returns the training container of a pod that was created for a job.
func madeFor(job string) []corev1.Container {
	return []corev1.Container{{Name: "train", Env: []corev1.EnvVar{{Name: membership.JobVariable, Value: job}}}}
}

func later(minutes int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute))
	}
}

// deleted makes a pod one that is deleted at noon and will be killed half a minute later.
func deleted(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(noon.Add(30*time.Second))), ptr.To(int64(30))
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func replaced(p *corev1.Pod) { p.Labels[v1alpha1.LabelReplaced] = "true" }

func TestPendingReplacements(t *testing.T) {
	one := v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "EvictedByHand", Message: "a fan", Pod: "uid-b"}
	evict := v1alpha1.NodeOutage{Decision: v1alpha1.DecisionEvict, Cause: "XidFatal", Message: "Xid 79", Since: metav1.NewMicroTime(noon)}
	dead := evict
	dead.Cause, dead.Dead = v1alpha1.CauseNodeUnreachable, true
	hold, deadHold := evict, dead
	hold.Decision, deadHold.Decision = v1alpha1.DecisionHold, v1alpha1.DecisionHold
	exclude := evict
	exclude.Decision = v1alpha1.DecisionExclude
	other := func(p *corev1.Pod) { p.Spec.Containers = madeFor("a former job") }
	for name, c := range map[string]struct {
		pods    []corev1.Pod
		outages map[string]v1alpha1.NodeOutage
		gone    []string
		ends    map[types.UID]Ending
		want    []string
	}{
		"all is well":                   {pods: []corev1.Pod{member("a", 0, "n1"), member("b", 1, "n2")}},
		"a node is to be left":          {pods: []corev1.Pod{member("a", 0, "n1"), member("b", 1, "n2")}, outages: map[string]v1alpha1.NodeOutage{"n2": evict}, want: []string{"1 uid-b b n2 XidFatal: Xid 79 dead=false deadline="}},
		"one pod of a node is to leave": {pods: []corev1.Pod{member("a", 0, "n1"), member("b", 1, "n1")}, outages: map[string]v1alpha1.NodeOutage{"n1": one}, want: []string{"1 uid-b b n1 EvictedByHand: a fan dead=false deadline="}},
		"a dead node":                   {pods: []corev1.Pod{member("a", 0, "n1")}, outages: map[string]v1alpha1.NodeOutage{"n1": dead}, want: []string{"0 uid-a a n1 NodeUnreachable: Xid 79 dead=true deadline="}},
		"held and excluded stay":        {pods: []corev1.Pod{member("a", 0, "n1"), member("b", 1, "n2")}, outages: map[string]v1alpha1.NodeOutage{"n1": hold, "n2": exclude}},
		"a node that is gone":           {pods: []corev1.Pod{member("a", 0, "n1")}, gone: []string{"n1"}, want: []string{"0 uid-a a n1 NodeGone: node n1 does not exist any more dead=true deadline="}},
		"deleted by somebody":           {pods: []corev1.Pod{member("a", 0, "n1", deleted)}, want: []string{"0 uid-a a n1 PodDeleted: the pod is being deleted dead=false deadline=12:00:27"}},
		"deleted before it had a node":  {pods: []corev1.Pod{member("a", 0, "", deleted)}, want: []string{"0 uid-a a  PodDeleted: the pod is being deleted dead=false deadline=12:00:27"}},
		"evicted by somebody": {pods: []corev1.Pod{member("a", 0, "n1", deleted, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}}
		})}, want: []string{"0 uid-a a n1 PodDeleted: EvictionByEvictionAPI: Eviction API: evicting dead=false deadline=12:00:27"}},
		"deleted on a dead node that is held":  {pods: []corev1.Pod{member("a", 0, "n1", deleted)}, outages: map[string]v1alpha1.NodeOutage{"n1": deadHold}, want: []string{"0 uid-a a n1 PodDeleted: the pod is being deleted dead=true deadline=12:00:27"}},
		"deleted on a node that is to be left": {pods: []corev1.Pod{member("a", 0, "n1", deleted)}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}, want: []string{"0 uid-a a n1 XidFatal: Xid 79 dead=false deadline="}},
		"both of two":                          {pods: []corev1.Pod{member("b", 1, "n1"), member("a", 0, "n1")}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}, want: []string{"0 uid-a a n1 XidFatal: Xid 79 dead=false deadline=", "1 uid-b b n1 XidFatal: Xid 79 dead=false deadline="}},
		"a deleted one whose heir is there":    {pods: []corev1.Pod{member("a", 0, "n1", deleted), member("a2", 0, "n2", later(1))}},
		"of two deleted ones the newer":        {pods: []corev1.Pod{member("a", 0, "n1", deleted), member("a2", 0, "n2", later(1), deleted)}, want: []string{"0 uid-a2 a2 n2 PodDeleted: the pod is being deleted dead=false deadline=12:00:27"}},
		"replaced ones are members no more":    {pods: []corev1.Pod{member("a", 0, "n1", replaced)}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}},
		"the heir on the same node":            {pods: []corev1.Pod{member("a", 0, "n1", replaced, deleted), member("a2", 0, "n1", later(1))}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}, want: []string{"0 uid-a2 a2 n1 XidFatal: Xid 79 dead=false deadline="}},
		"its node shuts down": {pods: []corev1.Pod{member("a", 0, "n1"), member("b", 1, "n2")}, ends: map[types.UID]Ending{"uid-b": {v1alpha1.CauseNodeShutdown, "node n2 says so", noon}},
			want: []string{"1 uid-b b n2 NodeShutdown: node n2 says so dead=false deadline="}},
		"its node shuts down, and somebody deletes it": {pods: []corev1.Pod{member("a", 0, "n1", deleted)}, ends: map[types.UID]Ending{"uid-a": {v1alpha1.CauseNodeShutdown, "node n1 says so", noon}},
			want: []string{"0 uid-a a n1 PodDeleted: the pod is being deleted dead=false deadline=12:00:27"}},
		"what has ended is the Job's":            {pods: []corev1.Pod{member("a", 0, "n1", inPhase(corev1.PodSucceeded)), member("b", 1, "n1", inPhase(corev1.PodFailed), deleted)}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}},
		"a former Job's pod":                     {pods: []corev1.Pod{member("a", 0, "n1", other)}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}},
		"a slot beyond the size":                 {pods: []corev1.Pod{member("a", 2, "n1")}, outages: map[string]v1alpha1.NodeOutage{"n1": evict}},
		"a failed one does not hide the living":  {pods: []corev1.Pod{member("a", 0, "n1", inPhase(corev1.PodFailed), later(2)), member("a2", 0, "n2", later(1))}, outages: map[string]v1alpha1.NodeOutage{"n2": evict}, want: []string{"0 uid-a2 a2 n2 XidFatal: Xid 79 dead=false deadline="}},
		"a pod that has no node is on no outage": {pods: []corev1.Pod{member("a", 0, "")}, outages: map[string]v1alpha1.NodeOutage{"": evict}, gone: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			gone := map[string]bool{}
			for _, n := range c.gone {
				gone[n] = true
			}
			var got []string
			for _, d := range PendingReplacements(View{Job: "job-uid", Members: 2, Pods: c.pods, Outages: c.outages, Gone: gone, Ends: c.ends}) {
				deadline := ""
				if !d.Deadline.IsZero() {
					deadline = d.Deadline.UTC().Format(time.TimeOnly)
				}
				got = append(got, fmt.Sprintf("%d %s %s %s %s: %s dead=%v deadline=%s", d.Slot, d.Pod, d.Name, d.Node, d.Cause, d.Message, d.Dead, deadline))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("pending are %q\nwant %q", got, c.want)
			}
		})
	}
}
