package preview

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

// Short is what a quota has too little of now.
type Short struct {
	Quota string `json:"quota"`
	// Resource is what it bounds, as the quota names it; empty where the quota is only for some pods, and was not compared.
	Resource string `json:"resource,omitempty"`
	Asked    string `json:"asked,omitempty"`
	Left     string `json:"left,omitempty"`
}

// Quotas are those that so many pods do not fit into now, and those that were not compared.
func Quotas(quotas []corev1.ResourceQuota, pod *corev1.Pod, members int32) []Short {
	var short []Short
	asked := quotaUse(pod, int64(members))
	for i := range quotas {
		q := &quotas[i]
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			short = append(short, Short{Quota: q.Name})
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
			want, counted := asked[name]
			left := q.Status.Hard[name].DeepCopy()
			left.Sub(q.Status.Used[name])
			if counted && want.Cmp(left) > 0 {
				short = append(short, Short{Quota: q.Name, Resource: string(name), Asked: want.String(), Left: left.String()})
			}
		}
	}
	return short
}

// quotaUse is what pods count for, by the names that quotas have.
func quotaUse(pod *corev1.Pod, members int64) corev1.ResourceList {
	use := corev1.ResourceList{
		corev1.ResourcePods: *apiresource.NewQuantity(members, apiresource.DecimalSI),
		"count/pods":        *apiresource.NewQuantity(members, apiresource.DecimalSI),
	}
	count := func(of corev1.ResourceList, names func(corev1.ResourceName) []corev1.ResourceName) {
		for name, q := range of {
			all := q.DeepCopy()
			all.Mul(members)
			for _, n := range names(name) {
				use[n] = all
			}
		}
	}
	count(resource.PodRequests(pod, resource.PodResourcesOptions{}), func(name corev1.ResourceName) []corev1.ResourceName {
		if strings.Contains(string(name), "/") {
			return []corev1.ResourceName{"requests." + name}
		}
		return []corev1.ResourceName{name, "requests." + name}
	})
	count(resource.PodLimits(pod, resource.PodResourcesOptions{}), func(name corev1.ResourceName) []corev1.ResourceName {
		return []corev1.ResourceName{"limits." + name}
	})
	return use
}

func (s Short) text() string {
	if s.Resource == "" {
		return fmt.Sprintf("quota %s is only for some pods, and was not compared", s.Quota)
	}
	return fmt.Sprintf("quota %s has too little %s now: the pods request %s, %s is free", s.Quota, s.Resource, s.Asked, s.Left)
}
