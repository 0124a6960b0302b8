package translate

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/topology"
)

// Terms are what is known of a gang besides its pods.
type Terms struct {
	// Size is how many members must exist before any is placed.
	Size int
	// Min is how many must be on nodes for the gang to do anything; the others come when they fit. 0: all.
	Min int
	// Tasks is the same for the members of each task.
	Tasks map[string]int
	// Topology is what the group asks of the fabric; what a pod's own annotations say wins.
	Topology gang.Topology
	// Free is what must be free in the whole cluster before any is placed.
	Free topology.Resources
	// Patience is how long the gang may hold nodes while it lacks members and never was whole; 0: as configured.
	Patience time.Duration
	// Unheeded says what the object asks for that is not done, and why.
	Unheeded []string
}

// OwnTerms are those of a gang of ours, as any of its pods says.
func OwnTerms(pod *corev1.Pod) (Terms, error) {
	size, err := GangSize(pod)
	if err != nil {
		return Terms{}, err
	}
	t := Terms{Size: size}
	if value, ok := pod.Annotations[v1alpha1.AnnotationMinMembers]; ok {
		least, err := strconv.Atoi(value)
		if err != nil || least < 1 || least > size {
			return Terms{}, fmt.Errorf("annotation %s of pod %s is %q: a number of pods from 1 to %d is needed", v1alpha1.AnnotationMinMembers, pod.Name, value, size)
		}
		if least < size {
			t.Min = least
		}
	}
	return t, nil
}

// Asks is what a gang asks of the fabric: what its pods say, else what its group does.
func Asks(pod *corev1.Pod, t Terms) (gang.Topology, error) {
	asks, err := settings.GangTopology(pod)
	if err != nil || t.Topology == (gang.Topology{}) {
		return asks, err
	}
	if asks.Required == "" && asks.Preferred == "" {
		asks.Required, asks.Preferred = t.Topology.Required, t.Topology.Preferred
	}
	return asks, nil
}

// CoschedulingTerms are those of a PodGroup of scheduler-plugins.
func CoschedulingTerms(pg *coscheduling.PodGroup) (Terms, error) {
	if err := noKeysOfOurs(membership.Coscheduling, pg.Name, pg.Annotations); err != nil {
		return Terms{}, err
	}
	least := max(1, int(pg.Spec.MinMember))
	t := Terms{Size: least, Min: least, Free: resourcesOf(pg.Spec.MinResources)}
	if s := pg.Spec.ScheduleTimeoutSeconds; s != nil && *s > 0 {
		t.Patience = time.Duration(*s) * time.Second
	}
	return t, nil
}

// noKeysOfOurs refuses our annotations on an object of which they are not read.
func noKeysOfOurs(api, name string, annotations map[string]string) error {
	for _, key := range settings.OurKeys(annotations) {
		return fmt.Errorf("annotation %s on %s/%s is not read: write it on the pods of the group", key, api, name)
	}
	return nil
}

// resourcesOf counts as nodes are counted: cores in thousandths.
func resourcesOf(list corev1.ResourceList) topology.Resources {
	r := topology.Resources{}
	for name, q := range list {
		if name == corev1.ResourceCPU {
			r[string(name)] = q.MilliValue()
		} else {
			r[string(name)] = q.Value()
		}
	}
	return r
}
