package external

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestCoschedulingStatus(t *testing.T) {
	pods := func(phases ...corev1.PodPhase) (all []*corev1.Pod) {
		for _, phase := range phases {
			all = append(
				all,
				&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{{Name: "job"}}},
					Status:     corev1.PodStatus{Phase: phase},
				},
			)
		}
		return all
	}
	const run, done, bad, wait = corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending
	for _, c := range []struct {
		was  coscheduling.PodGroupPhase
		pods []*corev1.Pod
		want string
	}{
		{"", nil, "Pending 0 0 0 "},
		{"", pods(wait, wait), "Scheduling 0 0 0 ns/job"},
		{"Pending", pods(wait), "Pending 0 0 0 "},
		{"Scheduling", pods(run, wait), "Scheduling 1 0 0 "},
		{"Scheduling", pods(run, run), "Running 2 0 0 "},
		{"Running", pods(run), "Pending 1 0 0 "},
		{"Running", pods(run, bad), "Failed 1 0 1 "},
		{"Running", pods(done, run), "Running 1 1 0 "},
		{"Running", pods(done, done, run), "Finished 1 2 0 "},
		{"Failed", pods(run, run), "Failed 0 0 0 "},
	} {
		pg := &coscheduling.PodGroup{Spec: coscheduling.PodGroupSpec{MinMember: 2}, Status: coscheduling.PodGroupStatus{Phase: c.was}}
		s := coschedulingStatus(pg, c.pods)
		if got := fmt.Sprint(s.Phase, " ", s.Running, " ", s.Succeeded, " ", s.Failed, " ", s.OccupiedBy); got != c.want {
			t.Errorf("%s, %d pods: %s, want %s", c.was, len(c.pods), got, c.want)
		}
		pg.Status = s
		if again := coschedulingStatus(pg, c.pods); !reflect.DeepEqual(again, s) {
			t.Errorf("%s, %d pods: not at rest: %+v then %+v", c.was, len(c.pods), s, again)
		}
	}
}

func TestVolcanoStatus(t *testing.T) {
	on := func(phase corev1.PodPhase, node string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	}
	pg := &vcscheduling.PodGroup{Spec: vcscheduling.PodGroupSpec{MinMember: 2}}
	now := metav1.Now()
	no := &v1alpha1.PlacementStatus{Reason: v1alpha1.ReasonInsufficientNodes, Message: "no room"}
	for _, c := range []struct {
		pods   []*corev1.Pod
		answer *v1alpha1.PlacementStatus
		want   string
	}{
		{nil, nil, "Inqueue []"},
		{[]*corev1.Pod{on("Pending", ""), on("Pending", "")}, no, "Inqueue [Unschedulable NotEnoughResources no room]"},
		{[]*corev1.Pod{on("Running", "a"), on("Pending", "")}, &v1alpha1.PlacementStatus{Reason: v1alpha1.ReasonMemberLost, Message: "one is gone"}, "Unknown [Unschedulable NotEnoughTasks one is gone]"},
		{[]*corev1.Pod{on("Running", "a"), on("Pending", "b")}, &v1alpha1.PlacementStatus{Placed: true, Message: "all"}, "Running [Scheduled tasks in gang are ready to be scheduled all]"},
		{[]*corev1.Pod{on("Succeeded", "a"), on("Failed", "b")}, nil, "Completed [Scheduled tasks in gang are ready to be scheduled all]"},
	} {
		pg.Status = volcanoStatus(pg, c.pods, c.answer, now)
		var conditions []string
		for _, one := range pg.Status.Conditions {
			conditions = append(conditions, fmt.Sprint(one.Type, " ", one.Reason, " ", one.Message))
		}
		if got := fmt.Sprint(pg.Status.Phase, " ", conditions); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if again := volcanoStatus(pg, c.pods, c.answer, metav1.Unix(1, 0)); !reflect.DeepEqual(again, pg.Status) {
			t.Errorf("not at rest: %+v then %+v", pg.Status, again)
		}
	}
}

// TestVolcanoWritesToo: if Volcano's scheduler also writes a group's status, Holdfast's scheduler only admits its own groups and removes
// its earlier condition. The two schedulers do not overwrite each other for ever.
func TestVolcanoWritesToo(t *testing.T) {
	pods := []*corev1.Pod{{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}}
	condition := func(kind vcscheduling.PodGroupConditionType, session, message string) vcscheduling.PodGroupCondition {
		return vcscheduling.PodGroupCondition{Type: kind, Status: corev1.ConditionTrue, TransitionID: session, Message: message}
	}
	ours := condition(vcscheduling.PodGroupUnschedulableType, "", "no room")
	theirs := condition(vcscheduling.PodGroupScheduled, "session", "")
	for _, c := range []struct{ phase, want vcscheduling.PodGroupPhase }{
		{"", "Inqueue"}, {"Pending", "Inqueue"}, {"Inqueue", "Inqueue"}, {"Unknown", "Unknown"}, {"Running", "Running"}, {"Completed", "Completed"},
	} {
		pg := &vcscheduling.PodGroup{Spec: vcscheduling.PodGroupSpec{MinMember: 2}, Status: vcscheduling.PodGroupStatus{
			Phase: c.phase, Running: 7, Conditions: []vcscheduling.PodGroupCondition{ours, theirs},
		}}
		want := vcscheduling.PodGroupStatus{Phase: c.want, Running: 7, Conditions: []vcscheduling.PodGroupCondition{theirs}}
		pg.Status = volcanoStatus(pg, pods, &v1alpha1.PlacementStatus{Placed: true, Message: "all"}, metav1.Now())
		if !reflect.DeepEqual(pg.Status, want) {
			t.Errorf("%s: %+v, want %+v", c.phase, pg.Status, want)
		}
		if again := volcanoStatus(pg, pods, nil, metav1.Now()); !reflect.DeepEqual(again, want) {
			t.Errorf("%s: not at rest: %+v", c.phase, again)
		}
	}
}

// The condition stays true after the group was placed.
func TestNativeCondition(t *testing.T) {
	pg := &schedulingv1beta1.PodGroup{}
	no, yes := &v1alpha1.PlacementStatus{Message: "no"}, &v1alpha1.PlacementStatus{Placed: true, Message: "yes"}
	for i, c := range []struct {
		answer *v1alpha1.PlacementStatus
		news   bool
	}{{nil, false}, {no, true}, {no, false}, {&v1alpha1.PlacementStatus{Message: "other"}, true}, {yes, true}, {no, false}, {yes, false}} {
		condition, news := nativeCondition(pg, c.answer, metav1.Now())
		if news != c.news {
			t.Errorf("step %d: news %v, want %v", i, news, c.news)
		}
		if news {
			pg.Status.Conditions = []metav1.Condition{condition}
		}
	}
	if got := pg.Status.Conditions[0]; got.Status != metav1.ConditionTrue || got.Message != "yes" {
		t.Errorf("%+v", got)
	}
}
