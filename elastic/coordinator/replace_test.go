package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/eventually"
)

// setAllPending creates a gang with that many pods, all of which must be replaced, as when their rack is dead.
func (h *house) setAllPending(job string, n int) Key {
	h.t.Helper()
	key := pod("team-a", job, 0, job+"-0").Key
	h.store.mu.Lock()
	h.store.members[key] = n
	h.store.mu.Unlock()
	terminations := []elastic.Termination{}
	for i := range n {
		terminations = append(
			terminations,
			elastic.Termination{
				Slot:  elastic.Slot(i),
				Pod:   fmt.Sprintf("%s-%d", job, i),
				Name:  fmt.Sprintf("%s-%d", job, i),
				Cause: "NodeUnreachable",
				Dead:  true,
			},
		)
	}
	if err := h.server.SetPendingReplacements(h.t.Context(), key, terminations); err != nil {
		h.t.Fatal(err)
	}
	return key
}

// TestReplacementsAtOnce: the number of concurrent requests for replacements is limited, however many pods must be replaced. They are sent
// in order.
func TestReplacementsAtOnce(t *testing.T) {
	const pods = 5 * replacers
	h := open(t, leading())
	var mu sync.Mutex
	begun, let := map[elastic.Slot]bool{}, make(chan struct{})
	h.store.replacing = func(ctx context.Context, _ Key, d elastic.Termination) error {
		mu.Lock()
		begun[d.Slot] = true
		mu.Unlock()
		select {
		case <-let:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.setAllPending("rack", pods)
	eventually.Holds(t, "a replacement by each replacer, while all others wait", func() (bool, any) {
		mu.Lock()
		defer mu.Unlock()
		return len(begun) == replacers &&
				h.server.replacements.Len() == pods-replacers, fmt.Sprint(
				len(begun),
				" begun, ",
				h.server.replacements.Len(),
				" wait",
			)
	})
	mu.Lock()
	for slot := range begun {
		if slot >= replacers {
			t.Errorf("slot %d did not wait for its turn", slot)
		}
	}
	mu.Unlock()
	close(let)
	eventually.Holds(t, "the replacement of all", func() (bool, any) { got := h.store.replacedPods(); return len(got) == pods, got })
}

// TestRefusedReplacementsLeaveTheirPlace: a request that is refused again and again delays no other gang.
func TestRefusedReplacementsLeaveTheirPlace(t *testing.T) {
	h := open(t, leading())
	let := make(chan struct{})
	h.store.replacing = func(_ context.Context, key Key, _ elastic.Termination) error {
		select {
		case <-let:
			return nil
		default:
		}
		if key.Name == "refused" {
			return errors.New("as if somebody's webhook refused it")
		}
		return nil
	}
	h.setAllPending("refused", 2*replacers)
	h.setAllPending("other", 1)
	eventually.Holds(t, "the other gang's replacement", func() (bool, any) { got := h.store.replacedPods(); return len(got) == 1, got })
	if got := h.store.replacedPods()[0].Name; got != "other-0" {
		t.Errorf("%s was replaced, and must have been refused", got)
	}
	close(let)
	eventually.Holds(t, "the replacement of those that were refused", func() (bool, any) { got := h.store.replacedPods(); return len(got) == 2*replacers+1, got })
}
