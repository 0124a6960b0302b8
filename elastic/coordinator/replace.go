package coordinator

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"

	"holdfast.dev/holdfast/elastic"
)

const (
	// replacers is the number of concurrent replacements over all gangs: a failing rack can make thousands due at once.
	replacers = 32
	// replaceTime bounds one request for a replacement, so that a hanging one delays others no longer.
	replaceTime = time.Minute
)

// replacement is a pod that the core wants replaced.
type replacement struct {
	gang        *gang
	termination elastic.Termination
}

// replacementQueue is first in, first out: the lost pods of a gang are released together, and gangs that failed first form first. A failed
// request is queued again with a delay.
type replacementQueue = workqueue.TypedRateLimitingInterface[replacement]

func newReplacements() replacementQueue {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[replacement](retryFirst, retryMost))
}

// replaces carries out replacements until the queue is shut down.
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

// replace requests a pod's replacement from the store and passes Released to the core; it reports whether nothing is left to do.
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
