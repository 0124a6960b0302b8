package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"holdfast.dev/holdfast/elastic"
)

// doomAll makes a gang of so many pods and dooms all of them, as where their rack is dead.
func (h *house) doomAll(job string, n int) Key {
	h.t.Helper()
	key := keyOf(pod("team-a", job, "0", job+"-0"))
	h.store.mu.Lock()
	h.store.members[key] = n
	h.store.mu.Unlock()
	dooms := []elastic.Doom{}
	for i := range n {
		dooms = append(dooms, elastic.Doom{Slot: elastic.Slot(i), Pod: fmt.Sprintf("%s-%d", job, i), Name: fmt.Sprintf("%s-%d", job, i), Cause: "NodeSilent", Dead: true})
	}
	if err := h.server.Doomed(h.t.Context(), key, dooms); err != nil {
		h.t.Fatal(err)
	}
	return key
}

// TestReplacementsAtOnce: however many pods are doomed, so many are asked for at once, those that came first before the others.
func TestReplacementsAtOnce(t *testing.T) {
	const pods = 5 * replacers
	h := open(t, leading())
	var mu sync.Mutex
	begun, let := map[elastic.Slot]bool{}, make(chan struct{})
	h.store.replacing = func(ctx context.Context, _ Key, d elastic.Doom) error {
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
	h.doomAll("rack", pods)
	eventually(t, "a replacement by each replacer, while all others wait", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(begun) == replacers && h.server.replacements.Len() == pods-replacers
	})
	mu.Lock()
	for slot := range begun {
		if slot >= replacers {
			t.Errorf("slot %d did not wait for its turn", slot)
		}
	}
	mu.Unlock()
	close(let)
	eventually(t, "the replacement of all", func() bool { return len(h.store.replacedPods()) == pods })
}

// TestRefusedReplacementsLeaveTheirPlace: what is refused again and again keeps no other gang from what it needs.
func TestRefusedReplacementsLeaveTheirPlace(t *testing.T) {
	h := open(t, leading())
	let := make(chan struct{})
	h.store.replacing = func(_ context.Context, key Key, _ elastic.Doom) error {
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
	h.doomAll("refused", 2*replacers)
	h.doomAll("other", 1)
	eventually(t, "the other gang's replacement", func() bool { return len(h.store.replacedPods()) == 1 })
	if got := h.store.replacedPods()[0].Name; got != "other-0" {
		t.Errorf("%s was replaced, and must have been refused", got)
	}
	close(let)
	eventually(t, "the replacement of those that were refused", func() bool { return len(h.store.replacedPods()) == 2*replacers+1 })
}
