package gangcache

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// A pod's own topology request overrides that of its group.
func TestAsks(t *testing.T) {
	of := Terms{Topology: gang.Topology{Required: "tier"}}
	p := asking(memberPod("g", 0, 1, 1), v1alpha1.AnnotationSpares, "1")
	if got, err := Asks(p, of); err != nil || got.Required != "tier" || got.Spares != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	p.Annotations[v1alpha1.AnnotationTopologyPreferred] = "rack"
	if got, err := Asks(p, of); err != nil || got.Required != "" || got.Preferred != "rack" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWhoJoinsIsNotWhatWasLost: a gang with a minimum does not go first for pods beyond that minimum. Otherwise a user who adds one pod
// after another to a running group would keep all other gangs of its priority waiting.
func TestWhoJoinsIsNotWhatWasLost(t *testing.T) {
	for name, c := range map[string]struct {
		terms       Terms
		want, tasks bool
	}{
		"all are needed":            {Terms{Size: 3}, true, false},
		"two are":                   {Terms{Size: 2, Min: 2}, false, false},
		"two are, three at first":   {Terms{Size: 3, Min: 2}, false, false},
		"two are, one of each task": {Terms{Size: 2, Min: 2, Tasks: map[string]int{"a": 1, "b": 1}}, true, true},
	} {
		l, k := newCache(), key("g")
		l.config.Terms = func(types.NamespacedName, *v1.Pod) (Terms, error) { return c.terms, nil }
		for i := range 3 {
			p := memberPod("g", i, 3, 1)
			if c.tasks {
				p.Annotations["volcano.sh/task-spec"] = []string{"a", "a", "b"}[i]
			}
			l.Observe(k, p)
			enter(l, p)
			if i < 2 {
				on := p.DeepCopy()
				on.Spec.NodeName = "n"
				l.Observe(k, on)
			}
		}
		g := l.groups[k]
		g.phase = whole
		turn := g.turn()
		if s := g.snapshot(); turn.Key.Degraded != c.want || s.Degraded() != c.want {
			t.Errorf("%s: ahead %v, asked %v, want %v", name, turn.Key.Degraded, s.Degraded(), c.want)
		}
	}
}

// Surplus is placed in the order in which its pods began to wait, and is taken along by a plan for the minimum only if that passes no gang.
func TestTheTurnOfSurplus(t *testing.T) {
	for name, c := range map[string]struct {
		bound   int
		other   int64 // when a pod of another gang was created; 0: there is none
		since   int64
		planned string
	}{
		"the minimum takes it along":           {0, 0, 10, "g-0 g-1 g-2 g-3"},
		"no gang is between":                   {0, 5, 10, "g-0 g-1 g-2 g-3"},
		"a gang is between":                    {0, 25, 10, "g-0 g-1"},
		"a pod that is needed passes a gang":   {1, 5, 10, "g-1"},
		"surplus has its own turn":             {2, 0, 20, "g-3"},
		"surplus that is younger waits for it": {2, 5, 20, "g-3"},
	} {
		l := newCache()
		l.config.Terms = func(k types.NamespacedName, p *v1.Pod) (Terms, error) {
			if k.Name == "g" {
				return Terms{Size: 2, Min: 2}, nil
			}
			return OwnTerms(p)
		}
		see := func(p *v1.Pod) {
			k := key(p.Labels[v1alpha1.LabelGang])
			l.Observe(k, p)
			l.Enqueued(k, p, func() bool { return true })
		}
		for slot, made := range []int64{10, 10, 30, 20} {
			p := created(memberPod("g", slot, 2, 1), at(made))
			if slot < c.bound {
				p = on(p, "n")
			}
			see(p)
		}
		if c.other > 0 {
			see(created(memberPod("other", 0, 1, 1), at(c.other)))
		}
		r, missing := l.PlanInput(key("g"))
		var planned []string
		for _, m := range r.Members {
			if m.State == Pending {
				planned = append(planned, m.Pod.Name)
			}
		}
		if got := strings.Join(planned, " "); missing != nil || got != c.planned || !r.Turn.Key.Since.Equal(at(c.since)) {
			t.Errorf("%s: plans %q since %v, want %q since %v", name, got, r.Turn.Key.Since, c.planned, at(c.since))
		}
		if r.Pending != 4-c.bound {
			t.Errorf("%s: %d wait, want %d", name, r.Pending, 4-c.bound)
		}
	}
}

// TestElasticTerms: a gang of Holdfast is elastic if its pods say so.
func TestElasticTerms(t *testing.T) {
	for value, want := range map[string]Terms{"": {Size: 4}, "2": {Size: 4, Min: 2}, "4": {Size: 4}} {
		p := memberPod("g", 0, 4, 1)
		if value != "" {
			asking(p, v1alpha1.AnnotationGangMin, value)
		}
		if got, err := OwnTerms(p); err != nil || got.Size != want.Size || got.Min != want.Min {
			t.Errorf("gang-min %q: %+v, %v", value, got, err)
		}
	}
	p := asking(memberPod("g", 0, 4, 1), v1alpha1.AnnotationGangMin, "2")
	delete(p.Annotations, v1alpha1.AnnotationGangSize)
	if got, err := OwnTerms(p); err == nil {
		t.Errorf("without a size: %+v", got)
	}
}

// elastic returns the pods of a gang that goes on with fewer.
func elastic(size, least int) []*v1.Pod {
	var pods []*v1.Pod
	for slot := range size {
		pods = append(pods, asking(memberPod("g", slot, size, 1), v1alpha1.AnnotationGangMin, strconv.Itoa(least)))
	}
	return pods
}

// TestWhatMustExist: at first an elastic gang is placed only once all of its pods exist. Later a pod that does not exist holds up none of
// the others, unless fewer than the minimum exist.
func TestWhatMustExist(t *testing.T) {
	l, k, pods := newCache(), key("g"), elastic(4, 2)
	for _, p := range pods[:3] {
		enter(l, p)
	}
	if _, missing := l.PlanInput(k); missing == nil {
		t.Error("planned before all pods exist")
	}
	enter(l, pods[3])
	if r, missing := l.PlanInput(k); missing != nil || r.Size != 4 || r.Required != 2 {
		t.Errorf("%+v, %v", r, missing)
	}
	for i := range 2 {
		l.Observe(k, on(pods[i].DeepCopy(), "n"))
	}
	for _, c := range []struct {
		gone, size int
	}{{3, 3}, {0, 2}} {
		l.Forget(k, pods[c.gone].UID)
		r, missing := l.PlanInput(k)
		if missing != nil || r.Size != c.size || len(r.Members) != c.size || r.Turn.Key.Degraded != (c.gone == 0) {
			t.Errorf("without pod %d: %+v, %v", c.gone, r, missing)
		}
	}
	l.Forget(k, pods[2].UID)
	if _, missing := l.PlanInput(k); missing == nil {
		t.Error("planned below the minimum")
	}
}

// TestAnElasticGangThatTrainedIsNotTakenBack: a new scheduler finds fewer pods on nodes than the minimum, and pods that wait since before
// the first placement. It takes the gang back only if these are the pods of that placement.
func TestAnElasticGangThatTrainedIsNotTakenBack(t *testing.T) {
	for name, again := range map[string]bool{"the same pods": false, "a pod was replaced": true} {
		pods := elastic(4, 2)
		for i, p := range pods {
			created(p, at(int64(12-i/2))) // those that were left out are the older ones
		}
		stamp := StampText(at(12), slices.Values(pods))
		asking(pods[0], v1alpha1.AnnotationInitialPlacement, stamp)
		pods[0] = on(pods[0], "n")
		if again {
			pods[1] = created(elastic(4, 2)[1], at(60))
		}
		l := newCache()
		for _, p := range pods {
			l.Observe(key("g"), p)
			enter(l, p)
		}
		if undo := l.Refuse(key("g"), &gang.Refusal{}); (len(undo) == 0) != again {
			t.Errorf("%s: %d pods are taken back", name, len(undo))
		}
	}
}

// TestSurplusOfOtherRoles: if the oldest pods of a role do not fit, the oldest of each other role may, in their own turn.
// A pod that comes after a refusal is tried.
func TestSurplusOfOtherRoles(t *testing.T) {
	l, k := newCache(), key("g")
	l.config.Terms = func(types.NamespacedName, *v1.Pod) (Terms, error) { return Terms{Size: 1, Min: 1}, nil }
	l.config.Role = func(p *v1.Pod) string { return p.Labels["role"] }
	come := func(slot int, role string, made int64) Change {
		p := created(memberPod("g", slot, 1, 1), at(made))
		p.Labels["role"] = role
		l.Observe(k, p)
		return enter(l, p)
	}
	l.Observe(k, on(created(memberPod("g", 0, 1, 1), at(0)), "n"))
	for i, role := range []string{"b", "a", "a", "b", "a", "c"} {
		come(1+i, role, []int64{20, 10, 10, 20, 30, 40}[i])
	}
	r, _ := l.PlanInput(k)
	var got []string
	for _, one := range append([]Snapshot{r}, r.Else...) {
		for _, m := range one.Members {
			if m.State == Pending {
				got = append(got, m.Pod.Name)
			}
		}
		got = append(got, fmt.Sprint(one.Turn.Key.Since.Unix()))
	}
	if want := "g-2 g-3 10 g-1 g-4 20 g-6 40"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	l.Refuse(k, &gang.Refusal{Reason: gang.InsufficientNodes})
	if !come(7, "d", 50).Completed {
		t.Error("a pod that comes after a refusal is not tried")
	}
}
