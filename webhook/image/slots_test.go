package image

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/webhook"
)

// TestOneTenantHoldsUpItself: registries that do not answer, all named by one namespace, keep no other from reading,
// not even from the same registry.
func TestOneTenantHoldsUpItself(t *testing.T) {
	s := newStore(t)
	s.push(t, "example.com/train", image(t, []string{"a"}, nil))
	release, asked := make(chan struct{}), make(chan struct{}, 10*mostAtOnce)
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	s.front.Store(front(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/slow") {
			asked <- struct{}{}
			<-release
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	}))
	r := New(Options{Transport: s.transport, Timeout: 2 * eventually.Timeout}) // all wait until the registry answers
	of := func(namespace string) func(*webhook.ImageQuery) {
		return func(q *webhook.ImageQuery) { q.Namespace = namespace }
	}
	var wg sync.WaitGroup
	for i := range 2 * mostAtOnce {
		wg.Go(func() { _, _ = ask(r, fmt.Sprintf("example.com/slow%d", i), of("greedy")) })
	}
	kept := func() (users, namespaces int) {
		r.slots.mu.Lock()
		defer r.slots.mu.Unlock()
		for _, sh := range r.slots.namespaces {
			users += sh.users
		}
		return users, len(r.slots.namespaces)
	}
	eventually.Holds(t, "all to ask", func() (bool, any) { users, _ := kept(); return users == 2*mostAtOnce && len(asked) > 0, users })
	sharing := func(timeout time.Duration) *Reader { // the slots
		with := New(Options{Transport: s.transport, Timeout: timeout})
		with.slots = r.slots
		return with
	}
	for _, namespace := range []string{"team", "other"} {
		if _, err := ask(sharing(eventually.Timeout/5), "example.com/train", of(namespace)); err != nil {
			t.Errorf("%s: %v", namespace, err)
		}
	}
	eventually.Holds(t, "the namespace to hear that it must wait", func() (bool, any) { // a busy machine may leave no time for that
		_, err := ask(sharing(300*time.Millisecond), "example.com/slow", of("greedy"))
		return err != nil && err.Error() == busy.Error(), err
	})
	if n := len(asked); n != mostOfNamespace {
		t.Errorf("the registry is asked for %d images at once", n)
	}
	let()
	wg.Wait()
	eventually.Holds(t, "no slot to be kept", func() (bool, any) {
		users, namespaces := kept()
		return users == 0 && namespaces == 0, fmt.Sprint(users, " users of ", namespaces, " namespaces")
	})
}
