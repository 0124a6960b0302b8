package image

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// mostAtOnce images are read at once, mostOfNamespace for the Jobs of one namespace: hosts that never answer hold up
// the Jobs of whoever names them, and nobody else's.
const (
	mostAtOnce      = 8
	mostOfNamespace = 1
)

const busy = userError("holdfast-controller reads as many images as it may, for this namespace or for all: try again")

// slots bound what is read at once.
type slots struct {
	all *semaphore.Weighted

	mu         sync.Mutex
	namespaces map[string]*share
}

// share is one namespace's, kept while somebody uses it or waits.
type share struct {
	users int
	own   *semaphore.Weighted
}

func newSlots() *slots {
	return &slots{all: semaphore.NewWeighted(mostAtOnce), namespaces: map[string]*share{}}
}

// take waits for a slot of the namespace's and one of all. It does not wait so long that no time is left to read.
func (s *slots) take(ctx context.Context, namespace string, wait time.Duration) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	sh := s.enter(namespace)
	if sh.own.Acquire(ctx, 1) != nil {
		s.exit(namespace)
		return nil, busy
	}
	if s.all.Acquire(ctx, 1) != nil {
		sh.own.Release(1)
		s.exit(namespace)
		return nil, busy
	}
	return func() {
		s.all.Release(1)
		sh.own.Release(1)
		s.exit(namespace)
	}, nil
}

func (s *slots) enter(namespace string) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.namespaces[namespace]
	if sh == nil {
		sh = &share{own: semaphore.NewWeighted(mostOfNamespace)}
		s.namespaces[namespace] = sh
	}
	sh.users++
	return sh
}

func (s *slots) exit(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.namespaces[namespace]
	if sh.users--; sh.users == 0 {
		delete(s.namespaces, namespace)
	}
}
