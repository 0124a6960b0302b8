package plugin

import (
	"strings"
	"testing"
	"time"
)

func TestNoticesWaitForGangsOnTheirWay(t *testing.T) {
	now, placing, told := time.Now(), true, 0
	n := &notices{patience: 30 * time.Second, placing: func() bool { return placing }}
	tell := func(at time.Time) int {
		told = 0
		for _, one := range n.due(at) {
			one.tell()
		}
		return told
	}
	for range noticesAtOnce + 1 {
		n.hold(now, func() { told++ })
	}
	n.hold(now.Add(time.Second), func() { told++ })
	if got := tell(now.Add(29 * time.Second)); got != 0 {
		t.Errorf("%d were told while a gang was on its way", got)
	}
	if got := tell(now.Add(30 * time.Second)); got != noticesAtOnce {
		t.Errorf("%d were told at once", got)
	}
	if got := tell(now.Add(30 * time.Second)); got != 1 {
		t.Errorf("%d were told, one is as old as patience allows", got)
	}
	placing = false
	if got := tell(now.Add(2 * time.Second)); got != 1 || len(n.held) != 0 {
		t.Errorf("%d were told, %d are held", got, len(n.held))
	}
}

// Every member is told to be scheduled, though later.
func TestEveryMemberIsToldOf(t *testing.T) {
	w := newWorld(t, extras{}, node("a", 2), node("b", 2))
	w.create(memberPod("g", 0, 2, 2), memberPod("g", 1, 2, 2))
	w.until("both to be told of", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range []string{"g-0", "g-1"} {
			if all := strings.Join(w.events[name], "\n"); strings.Count(all, "Scheduled: Successfully assigned") != 1 {
				return false
			}
		}
		return true
	})
}
