package image

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast.dev/holdfast/webhook"
)

// TestOneTenantHoldsUpItself: registries that do not answer, all named by one namespace, keep no other from reading,
// not even from the same registry.
func TestOneTenantHoldsUpItself(t *testing.T) {
	s := newStore(t)
	s.push(t, "example.com/train", image(t, []string{"a"}, nil))
	release := make(chan struct{})
	s.front.Store(front(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/slow") {
			<-release
			return true
		}
		return false
	}))
	r := New(Options{Transport: s.transport, Timeout: 2 * time.Second})
	of := func(namespace string) func(*webhook.ImageQuery) {
		return func(q *webhook.ImageQuery) { q.Namespace = namespace }
	}
	answers := make(chan error, 2*mostAtOnce)
	var wg sync.WaitGroup
	for i := range 2 * mostAtOnce {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := ask(r, fmt.Sprintf("example.com/slow%d", i), of("greedy"))
			answers <- err
		}()
	}
	users := func() (n int) {
		r.slots.mu.Lock()
		defer r.slots.mu.Unlock()
		for _, sh := range r.slots.namespaces {
			n += sh.users
		}
		return n
	}
	for users() < 2*mostAtOnce {
		time.Sleep(time.Millisecond)
	}
	for _, namespace := range []string{"team", "other"} {
		if _, err := ask(r, "example.com/train", of(namespace)); err != nil {
			t.Errorf("%s: %v", namespace, err)
		}
	}
	wg.Wait()
	close(release)
	close(answers)
	said := map[string]int{}
	for err := range answers {
		said[fmt.Sprint(err)]++
	}
	if said[busy.Error()] != 2*mostAtOnce-mostOfNamespace || said[unreachable("example.com").Error()] != mostOfNamespace {
		t.Errorf("%v", said)
	}
	for i := 0; users() > 0; i++ {
		if time.Sleep(time.Millisecond); i == 5000 {
			t.Fatal("slots are kept")
		}
	}
	if len(r.slots.namespaces) > 0 {
		t.Error("namespaces are kept")
	}
}
