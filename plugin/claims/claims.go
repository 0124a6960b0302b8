// Package claims handles resource claims (dynamic resource allocation) for the scheduler's plugin: which claims the
// members of a gang have, why members with claims cannot be placed together, and which devices remained allocated after
// an earlier binding failed. Devices of a pod that is bound, or is being bound, are never released.
//
// The framework's filter checks for one pod and one node whether there are devices for the pod's claims, device taints
// included. The filter does not count members that are planned and not yet reserved. So the planner puts at most one
// planned pod with claims on a node at a time. Where each device belongs to one node, the filter's answers for single
// nodes then hold for the whole plan. Where devices belong to no node, a dry-run reserve checks the plan.
package claims

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// Slot is a resource that each node has once and that a planned pod with claims takes. A reserved pod takes none: the filter counts its
// devices.
const Slot = "resource-claims"

// NobodyLeaves is added to a refusal for lack of such devices: preemption does not free them.
const NobodyLeaves = "devices of resource claims are neither preempted nor reserved"

// Needs are the claims of members to be placed.
type Needs struct {
	// Kind is, by member's name, a key that is equal for members with equal claims; empty: no claims.
	Kind map[string]string
	// Settled is the set of members, by name, whose claims are all allocated.
	Settled map[string]bool
}

// Read returns the claims of members to be placed, or a refusal if a claim is missing or cannot be used.
func Read(manager fwk.SharedDRAManager, of gangcache.Snapshot, nodes int) (Needs, *gang.Refusal) {
	n := Needs{Kind: map[string]string{}, Settled: map[string]bool{}}
	wanted := 0
	for _, m := range of.Members {
		if m.State == gangcache.Pending {
			wanted++
		}
	}
	refusal := func(reason, says string) *gang.Refusal {
		return &gang.Refusal{Reason: reason, Wanted: wanted, Nodes: nodes, Message: says}
	}
	users := map[types.UID]string{}
	for _, m := range of.Members {
		if m.State != gangcache.Pending || len(m.Pod.Spec.ResourceClaims) == 0 {
			continue
		}
		if manager == nil {
			return n, refusal(gang.Unsupported, fmt.Sprintf(
				"pod %s cannot get the devices of its resource claim %q: the API server does not serve resource.k8s.io/v1 (resourceclaims, resourceslices, deviceclasses), or feature gate DynamicResourceAllocation is off: enable both and restart the scheduler", m.Pod.Name, m.Pod.Spec.ResourceClaims[0].Name))
		}
		all, err := Of(manager, m.Pod)
		if err != nil {
			return n, refusal(gang.WaitingForMembers, err.Error())
		}
		text := []any{}
		n.Settled[m.Pod.Name] = !AsksClass(manager, m.Pod)
		for _, claim := range all {
			if claim.Status.Allocation != nil {
				text = append(text, claim.UID) // it is bound to where that is
				continue
			}
			n.Settled[m.Pod.Name] = false
			if other := users[claim.UID]; other != "" && other != m.Pod.Name {
				return n, refusal(gang.Unsupported, fmt.Sprintf(
					"pods %s and %s share resource claim %s, which has no devices yet: let a pod outside of gangs use it first, or give each pod its own by resourceClaimTemplateName", other, m.Pod.Name, claim.Name))
			}
			users[claim.UID] = m.Pod.Name
			text = append(text, claim.Spec)
		}
		shape, err := json.Marshal(text)
		if err != nil {
			return n, refusal(gang.Unsupported, fmt.Sprintf("the resource claims of pod %s cannot be read: %v", m.Pod.Name, err))
		}
		sum := sha256.Sum256(shape)
		n.Kind[m.Pod.Name] = string(sum[:])
	}
	return n, nil
}

// Awaited reports whether claims are still to be created from a pod's templates. kube-scheduler holds the pod back until then.
func Awaited(pod *v1.Pod) bool {
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		if _, _, err := resourceclaim.Name(pod, ref); err != nil && ref.ResourceClaimTemplateName != nil && pod.Spec.NodeName == "" {
			return true
		}
	}
	return false
}

// Of returns a pod's claims.
func Of(manager fwk.SharedDRAManager, pod *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var all []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, ref)
		switch {
		case err != nil:
			return nil, fmt.Errorf("resource claim %q of pod %s does not exist yet: kube-controller-manager creates it after the pod", ref.Name, pod.Name)
		case name == nil:
			continue // its controller found that none is needed
		}
		claim, err := manager.ResourceClaims().Get(pod.Namespace, *name)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("resource claim %s, which pod %s names in spec.resourceClaims, does not exist: create it", *name, pod.Name)
		} else if err != nil {
			return nil, fmt.Errorf("reading resource claim %s of pod %s: %w", *name, pod.Name, err)
		}
		all = append(all, claim)
	}
	return all, nil
}

// Has reports whether a pod gets any device by a claim.
func Has(manager fwk.SharedDRAManager, pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || AsksClass(manager, pod)
}

// AsksClass reports whether a pod requests an extended resource that a device class serves.
func AsksClass(manager fwk.SharedDRAManager, pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if IsExtended(string(name)) && manager.DeviceClassResolver().GetDeviceClass(name) != nil {
					return true
				}
			}
		}
	}
	return false
}

// Settled reports whether all of a pod's claims are allocated.
func Settled(manager fwk.SharedDRAManager, pod *v1.Pod) bool {
	all, err := Of(manager, pod)
	return err == nil && !AsksClass(manager, pod) &&
		!slices.ContainsFunc(all, func(c *resourcev1.ResourceClaim) bool { return c.Status.Allocation == nil })
}

// Elsewhere reports whether there are devices that belong to no node, and returns their driver.
func Elsewhere(manager fwk.SharedDRAManager) (driver string, are bool, err error) {
	all, err := manager.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return "", false, fmt.Errorf("listing resource slices: %w", err)
	}
	for _, s := range all {
		if s.Spec.NodeName == nil || *s.Spec.NodeName == "" {
			return s.Spec.Driver, true, nil
		}
	}
	return "", false, nil
}

// IsExtended reports whether a resource is an extended one, such as a device.
func IsExtended(resource string) bool { return strings.Contains(resource, "/") }
