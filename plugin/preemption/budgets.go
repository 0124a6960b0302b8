package preemption

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"

	"holdfast.dev/holdfast/gang/preemption"
)

// budgets are the disruption budgets of the preemptible pods.
type budgets struct {
	lister  policylisters.PodDisruptionBudgetLister
	allowed []int
	// in are the namespaces' budgets, read once.
	in map[string][]budget
}

type budget struct {
	index int
	of    labels.Selector
	// done are pods that the budget already counts as disrupted.
	done map[string]metav1.Time
}

func (p *Preemptor) budgets() *budgets {
	return &budgets{lister: p.config.Budgets, in: map[string][]budget{}}
}

// count adds a pod to the budgets of its unit. A budget that cannot be read allows no disruption.
func (b *budgets) count(u *preemption.Unit, pod *v1.Pod) {
	all, known := b.in[pod.Namespace]
	if !known {
		list, err := b.lister.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
		if err != nil {
			list = nil
		}
		for _, pdb := range list {
			selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
			if err != nil || selector.Empty() {
				continue
			}
			all = append(all, budget{index: len(b.allowed), of: selector, done: pdb.Status.DisruptedPods})
			b.allowed = append(b.allowed, max(0, int(pdb.Status.DisruptionsAllowed)))
		}
		b.in[pod.Namespace] = all
	}
	for _, one := range all {
		if _, already := one.done[pod.Name]; already || !one.of.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if u.Budgets == nil {
			u.Budgets = map[int]int{}
		}
		u.Budgets[one.index]++
	}
}
