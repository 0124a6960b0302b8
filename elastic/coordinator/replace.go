package coordinator

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"

	"holdfast.dev/holdfast/elastic"
)

const (
	// replacers is how many pods are replaced at once, of all gangs: a rack that fails makes thousands due at the same moment.
	replacers = 32
	// replaceTime bounds one request for a replacement, so that those that hang hold up the others for no longer than that.
	replaceTime = time.Minute
)

// replacement is a pod that the core wants replaced.
type replacement struct {
	gang        *gang
	termination elastic.Termination
}

// replacementQueue is worked off first come, first served: what a gang has lost is released together, and gangs that came first form
// again first. What does not succeed leaves its place to others until it is tried again.
type replacementQueue = workqueue.TypedRateLimitingInterface[replacement]

func newReplacements() replacementQueue {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[replacement](retryFirst, retryMost))
}

// replaces does them until the queue is shut down.
func (s *Server) replaces() {
	for {
		r, over := s.replacements.Get()
		if over {
			return
		}
		if r.gang.replace(r.termination, s.replacements.NumRequeues(r)+1) {
			s.replacements.Forget(r)
		} else {
			s.replacements.AddRateLimited(r)
		}
		s.replacements.Done(r)
	}
}

// replace asks the store for a pod's replacement, the first time or once more, and tells the core; it reports whether there is nothing
// left to do.
func (g *gang) replace(d elastic.Termination, tries int) bool {
	if g.ctx.Err() != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(g.ctx, replaceTime)
	defer cancel()
	if err := g.server.Store.Replace(ctx, g.key, d); err != nil {
		return g.givenUp("replacing pod "+d.Name, tries, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step(elastic.Released{Pod: d.Pod, At: time.Now()})
	return true
}
