package planner

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// Filters check every node for each kind of pods, and no other pod is scheduled meanwhile. So a gang may have at most MaxKinds kinds, and
// in a large cluster at most MaxQuestions divided by the nodes, but never fewer than keptRoles. MaxQuestions take 3 to 5 s of one processor
// (BenchmarkKinds); filters use all processors. A plan of more than pacedQuestions needs a turn, so that all such plans together take at
// most a tenth of the time. Where pods have rules among themselves, each check of a member beside others counts too, times the number of
// others (BenchmarkRules).
const (
	MaxKinds       = 1024
	MaxQuestions   = 1_000_000
	pacedQuestions = 100_000
)

// mostKinds returns the most kinds of pods that a gang may have among so many nodes.
func mostKinds(nodes int) int { return max(keptRoles, min(MaxKinds, MaxQuestions/max(1, nodes))) }

// sort groups the members to be placed by kind. If there are too many kinds, labels are ignored; then each member is checked by itself on
// its planned node.
func (s *planCycle) sort() *gang.Refusal {
	for _, of := range []func(role string) string{func(role string) string { return role }, withoutLabels} {
		wanted, seen := 0, map[string]bool{}
		s.like = make([]string, len(s.snapshot.Members))
		for i, m := range s.snapshot.Members {
			if m.State == gangcache.Pending {
				s.like[i] = of(m.Role) + s.kind[m.Pod.Name] + s.p.boundVolumes(m.Pod)
				wanted, seen[s.like[i]] = wanted+1, true
			}
		}
		most := mostKinds(len(s.nodes))
		if len(seen) <= most {
			s.questions = len(seen) * len(s.nodes)
			return nil
		}
		if s.coarse {
			return &gang.Refusal{Reason: gang.Unsupported, Wanted: wanted, Nodes: len(s.nodes), Message: fmt.Sprintf(
				"its pods have %d different shapes, and at most %d are possible with %d nodes: give them the same requests, selectors, tolerations, affinity and volumes, as pods of one template have, or split the gang", len(seen), most, len(s.nodes))}
		}
		s.coarse = true
	}
	return nil
}

// takeTurnFor reports whether the plan may make n more checks. For many it takes a turn, or makes the plan wait for one.
func (s *planCycle) takeTurnFor(n int) bool {
	if s.waits != nil {
		return false
	}
	if s.brief && s.questions+n > pacedQuestions {
		s.waits = &gang.Refusal{Reason: gang.WaitingForMembers, Undecided: true}
		return false
	}
	if s.questions+n <= pacedQuestions || s.turn || !s.paced() {
		return true
	}
	s.waits = s.takeTurn(s.p.plans)
	s.turn = s.waits == nil
	return s.turn
}

// BoundVolumes returns a key for the generic ephemeral volumes of a pod that exist already: equal where the volumes are accessible from the
// same nodes, empty where all are still to be created.
func BoundVolumes(claims corelisters.PersistentVolumeClaimLister, volumes corelisters.PersistentVolumeLister) func(*v1.Pod) string {
	return func(pod *v1.Pod) string {
		var bound []any
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].Ephemeral == nil {
				continue
			}
			claim, err := claims.PersistentVolumeClaims(pod.Namespace).Get(ephemeral.VolumeClaimName(pod, &pod.Spec.Volumes[i]))
			if err != nil {
				continue // the pod's spec describes a volume to be created
			}
			if claim.Spec.VolumeName == "" {
				if node := claim.Annotations[volume.AnnSelectedNode]; node != "" { // the only node where its volume is being created
					bound = append(bound, i, "selected", node)
				}
				continue
			}
			made, err := volumes.Get(claim.Spec.VolumeName)
			if err != nil {
				bound = append(bound, i, claim.Spec.VolumeName)
				continue
			}
			bound = append(bound, i, made.Spec.NodeAffinity, made.Labels[v1.LabelTopologyZone], made.Labels[v1.LabelTopologyRegion])
		}
		if len(bound) == 0 {
			return ""
		}
		text, err := json.Marshal(bound)
		if err != nil {
			return pod.Name
		}
		return string(text)
	}
}

// boundVolumes calls Config.BoundVolumes, if set.
func (p *Planner) boundVolumes(pod *v1.Pod) string {
	if p.config.BoundVolumes == nil {
		return ""
	}
	return p.config.BoundVolumes(pod)
}
