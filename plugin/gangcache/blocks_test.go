package gangcache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// inBlocks returns the pods of a gang that goes on with whole blocks of slots. Those of a slot are created at that time, in seconds.
func inBlocks(size, least, unit int) []*v1.Pod {
	pods := elastic(size, least)
	for slot, p := range pods {
		created(asking(p, v1alpha1.AnnotationGangUnit, fmt.Sprint(unit)), at(int64(slot)))
	}
	return pods
}

// TestBlocks: which pods of a gang of three blocks of two the next plan is for, and which of these it needs.
func TestBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		on, absent, ended []int
		want              string // pending pods in the plan; in parentheses: surplus
	}{
		"none is placed":                  {nil, nil, nil, "0 1 (2 3 4 5)"},
		"none is placed, one is missing":  {nil, []int{5}, nil, "-"},
		"one of the minimum is lost":      {[]int{0}, nil, nil, "1 (2 3 4 5)"},
		"the block that lacks the fewest": {[]int{3}, nil, nil, "2 (0 1 4 5)"},
		"two halves are no whole":         {[]int{0, 2}, nil, nil, "1 (3 4 5)"},
		"the minimum stands":              {[]int{0, 1}, nil, nil, "(2 3)"},
		"another block does":              {[]int{2, 3}, nil, nil, "(0 1)"},
		"half a block has nodes":          {[]int{0, 1, 3}, nil, nil, "(2)"},
		"a pod of a block is missing":     {[]int{0, 1}, []int{3}, nil, "(4 5)"},
		"of each":                         {[]int{0, 1}, []int{2, 5}, nil, ""},
		"one of the minimum is missing":   {[]int{0, 3}, []int{1}, nil, "2 (4 5)"},
		"halves are missing":              {[]int{0, 2, 4}, []int{1, 3, 5}, nil, "-"},
		"one has succeeded":               {[]int{1}, []int{0}, []int{0}, "(2 3)"},
		"and the other half is lost":      {[]int{2}, []int{0}, []int{0}, "1 (3 4 5)"},
	} {
		l, k := newCache(), key("g")
		for slot, p := range inBlocks(6, 2, 2) {
			if slices.Contains(c.on, slot) {
				p = on(p, "n")
			}
			if !slices.Contains(c.absent, slot) {
				l.Observe(k, p)
				enter(l, p)
			}
		}
		l.groups[k].phase = whole
		for _, slot := range c.ended {
			l.Explain(Question{Key: k}, []*v1.Pod{inBlocks(6, 2, 2)[slot]})
		}
		got := "-"
		if r, missing := l.PlanInput(k); missing == nil {
			needed, _, _ := r.Needed()
			var must, more []string
			for _, m := range r.Members {
				switch {
				case m.State != Pending || l.Leader(k) == nil:
				case slices.ContainsFunc(needed.Members, func(n Member) bool { return n.Pod.UID == m.Pod.UID }):
					must = append(must, fmt.Sprint(m.Slot.N))
				default:
					more = append(more, fmt.Sprint(m.Slot.N))
				}
			}
			got = strings.Join(must, " ")
			if len(more) > 0 {
				got = strings.TrimSpace(got + " (" + strings.Join(more, " ") + ")")
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestABlockComesBack: a block waits until both of its pods exist, and has its turn as the one that was created last.
func TestABlockComesBack(t *testing.T) {
	l, k, pods := newCache(), key("g"), inBlocks(6, 2, 2)
	for slot, p := range pods {
		if slot < 2 {
			p = on(p, "n")
		}
		if slot != 2 {
			l.Observe(k, p)
			enter(l, p)
		}
	}
	if lead := l.Leader(k); lead == nil || lead.Name != "g-4" {
		t.Errorf("%v leads, and the block of slot 3 lacks a pod", lead)
	}
	late := created(pods[2], at(99))
	l.Observe(k, late)
	if did := enter(l, late); !did.Completed {
		t.Error("a block that is whole again is not tried")
	}
	if lead := l.Leader(k); lead == nil || lead.Name != "g-4" {
		t.Errorf("%v leads, whose block waits since a pod that came last", lead)
	}
	r, _ := l.PlanInput(k)
	var turns []string
	for _, one := range append([]Snapshot{r}, r.Else...) {
		for _, m := range one.Members {
			if m.State == Pending {
				turns = append(turns, m.Pod.Name)
			}
		}
		turns = append(turns, fmt.Sprint(one.Turn.Key.Since.Unix()))
	}
	if got := strings.Join(turns, " "); got != "g-4 g-5 5" {
		t.Errorf("the plan is %q", got)
	}
	l.Forget(k, pods[4].UID)
	if r, _ = l.PlanInput(k); !r.Turn.Key.Since.Equal(at(99)) || l.Leader(k) == nil || l.Leader(k).Name != "g-2" {
		t.Errorf("the block that came back has turn %v, led by %v", r.Turn.Key.Since, l.Leader(k))
	}
}

// TestBlocksOfOtherNeeds: where a block has no room, another one that needs fewer nodes may have room.
func TestBlocksOfOtherNeeds(t *testing.T) {
	l, k, pods := newCache(), key("g"), inBlocks(8, 2, 2)
	for slot, p := range pods {
		if slot < 2 || slot == 7 {
			p = on(p, "n")
		}
		l.Observe(k, p)
		enter(l, p)
	}
	r, _ := l.PlanInput(k)
	if len(r.Members) != 5 || len(r.Else) != 1 || len(r.Else[0].Members) != 4 || !r.Else[0].Turn.Key.Since.Equal(at(6)) {
		t.Errorf("the plan has %d pods, %d others: %+v", len(r.Members), len(r.Else), r.Turn)
	}
}
