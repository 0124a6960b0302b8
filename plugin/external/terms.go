package external

import (
	"fmt"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// coschedulingTerms returns the terms of a PodGroup of scheduler-plugins.
func coschedulingTerms(pg *coscheduling.PodGroup) (gangcache.Terms, error) {
	if err := noKeysOfOurs(membership.Coscheduling, pg.Name, pg.Annotations); err != nil {
		return gangcache.Terms{}, err
	}
	free, err := resourcesOf(membership.Coscheduling+"/"+pg.Name, pg.Spec.MinResources)
	if err != nil {
		return gangcache.Terms{}, err
	}
	least := max(1, int(pg.Spec.MinMember))
	t := gangcache.Terms{Size: least, Min: least, Free: free}
	if s := pg.Spec.ScheduleTimeoutSeconds; s != nil && *s > 0 {
		t.Timeout = time.Duration(*s) * time.Second
	}
	return t, nil
}

// noKeysOfOurs refuses Holdfast's annotations on a kind of object where they are not read.
func noKeysOfOurs(api, name string, annotations map[string]string) error {
	for _, key := range settings.OurKeys(annotations) {
		return fmt.Errorf("annotation %s on %s/%s is not read: write it on the pods of the group", key, api, name)
	}
	return nil
}

// resourcesOf converts resources to the units of nodes: cores in thousandths.
func resourcesOf(group string, list corev1.ResourceList) (topology.Resources, error) {
	r := topology.Resources{}
	for name, q := range list {
		if q.Sign() < 0 {
			return nil, fmt.Errorf("spec.minResources of %s requests %s of %s: write zero or more, or remove it", group, q.String(), name)
		}
		most := int64(math.MaxInt64) // a larger value would overflow
		if name == corev1.ResourceCPU {
			most /= 1000
		}
		if q.CmpInt64(most) > 0 {
			return nil, fmt.Errorf("spec.minResources of %s requests %s of %s, which no cluster has: write less, or remove it", group, q.String(), name)
		}
		if name == corev1.ResourceCPU {
			r[string(name)] = q.MilliValue()
		} else {
			r[string(name)] = q.Value()
		}
	}
	return r, nil
}

// volcanoTerms returns the terms of Volcano's PodGroup.
func volcanoTerms(pg *vcscheduling.PodGroup) (gangcache.Terms, error) {
	if err := noKeysOfOurs(membership.Volcano, pg.Name, pg.Annotations); err != nil {
		return gangcache.Terms{}, err
	}
	if handedOver(pg) {
		return gangcache.Terms{}, fmt.Errorf("%s/%s belongs to gang %s, which Volcano places: write schedulerName: volcano on the pod, or remove the group from it", membership.Volcano, pg.Name, pg.Labels[v1alpha1.LabelGang])
	}
	if len(pg.Spec.SubGroupPolicy) > 0 {
		return gangcache.Terms{}, fmt.Errorf("spec.subGroupPolicy of %s/%s is not supported by this scheduler: remove it, and write holdfast.dev/slice-level and holdfast.dev/slice-size on the pods", membership.Volcano, pg.Name)
	}
	least := max(1, int(pg.Spec.MinMember))
	t := gangcache.Terms{Size: least, Min: least, Tasks: map[string]int{}}
	tasks := 0
	for task, n := range pg.Spec.MinTaskMember {
		if n > 0 {
			t.Tasks[task] = int(n)
			tasks += int(n)
		}
	}
	t.Size, t.Min = max(t.Size, tasks), max(t.Min, tasks)
	var err error
	if pg.Spec.MinResources != nil {
		if t.Free, err = resourcesOf(membership.Volcano+"/"+pg.Name, *pg.Spec.MinResources); err != nil {
			return gangcache.Terms{}, err
		}
	}
	if q := pg.Spec.Queue; q != "" && q != "default" {
		t.Ignored = append(t.Ignored, fmt.Sprintf("queue %s: this scheduler has no queues; pods are ordered by priority", q))
	}
	if c := pg.Spec.PriorityClassName; c != "" {
		t.Ignored = append(t.Ignored, fmt.Sprintf("priorityClassName %s of the group is ignored: the pods' own applies", c))
	}
	t.Topology, err = networkTopology(pg.Spec.NetworkTopology)
	return t, err
}

// handedOver reports whether Holdfast's controller made a group for a gang that Volcano places: Holdfast's scheduler ignores it.
func handedOver(pg *vcscheduling.PodGroup) bool { return pg.Labels[v1alpha1.LabelGang] != "" }

// networkTopology translates Volcano's setting: hard is a required level, soft a preferred one. A setting that names no tier means the
// lowest tier that can hold the gang, which placement prefers anyway.
func networkTopology(n *vcscheduling.NetworkTopologySpec) (gang.Topology, error) {
	if n == nil {
		return gang.Topology{}, nil
	}
	level := n.HighestTierName
	switch {
	case level != "" && n.HighestTierAllowed != nil:
		return gang.Topology{}, fmt.Errorf("networkTopology has highestTierAllowed and highestTierName: remove one of them")
	case n.HighestTierAllowed != nil:
		level = tierKey(*n.HighestTierAllowed)
	case level == "":
		return gang.Topology{}, nil
	}
	if n.Mode == vcscheduling.SoftNetworkTopologyMode {
		return gang.Topology{Preferred: level}, nil
	}
	return gang.Topology{Required: level}, nil
}

// tierKey returns the key of the level of a HyperNode tier, in place of a node label.
func tierKey(tier int) string { return tierPrefix + strconv.Itoa(tier) }

const tierPrefix = "topology.volcano.sh/tier-"

// nativeTerms returns the terms of Kubernetes's own PodGroup. Pods of a group with the basic policy are placed one by one.
func nativeTerms(pg *schedulingv1beta1.PodGroup) (gangcache.Terms, error) {
	if err := noKeysOfOurs(membership.Native, pg.Name, pg.Annotations); err != nil {
		return gangcache.Terms{}, err
	}
	if pg.Spec.ParentCompositePodGroupName != nil {
		return gangcache.Terms{}, fmt.Errorf("%s/%s is part of composite group %s, which this scheduler does not support: remove spec.parentCompositePodGroupName", membership.Native, pg.Name, *pg.Spec.ParentCompositePodGroupName)
	}
	if len(pg.Spec.ResourceClaims) > 0 {
		return gangcache.Terms{}, fmt.Errorf("%s/%s shares resource claims among its pods, which this scheduler does not count: remove spec.resourceClaims", membership.Native, pg.Name)
	}
	t := gangcache.Terms{Size: 1, Min: 1}
	if g := pg.Spec.SchedulingPolicy.Gang; g != nil {
		t.Size, t.Min = max(1, int(g.MinCount)), max(1, int(g.MinCount))
	}
	if c := pg.Spec.SchedulingConstraints; c != nil {
		for _, one := range c.Topology {
			t.Topology.Required = one.Key
		}
	}
	if c := pg.Spec.PriorityClassName; c != "" {
		t.Ignored = append(t.Ignored, fmt.Sprintf("priorityClassName %s of the group is ignored: the pods' own applies", c))
	}
	return t, nil
}
