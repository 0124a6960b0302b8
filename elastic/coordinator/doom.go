package coordinator

import (
	"context"
	"time"

	"holdfast.dev/holdfast/elastic"
)

const (
	// tickEvery is how often the core is told that time passes while it waits for pods to be replaced.
	tickEvery = 100 * time.Millisecond
	// seekTime bounds a question for the holders of slots.
	seekTime = 10 * time.Second
	// heardKept is how long the last word of an agent is remembered.
	heardKept = time.Hour
	// heardMost bounds that memory; beyond it what is old is forgotten.
	heardMost = 1 << 16
)

// Doomed tells a gang the level: every pod of it that must be replaced now. A gang that is not known is loaded.
// It is UNAVAILABLE where this process does not lead.
func (s *Server) Doomed(ctx context.Context, key Key, pods []elastic.Doom) error {
	if !s.leads() {
		return errNotLeader
	}
	g, err := s.gang(ctx, key)
	if err != nil {
		return err
	}
	defer s.release(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step(elastic.Doomed{Pods: pods})
	return nil
}

// Over tells a gang that its Job has ended or is being deleted. One that is not known has no agents here.
func (s *Server) Over(key Key) {
	s.mu.Lock()
	g := s.gangs[key]
	s.mu.Unlock()
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != nil {
		g.step(elastic.Over{})
	}
}

// Heard says when the agent of a pod last said anything here.
func (s *Server) Heard(podUID string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.heard[podUID]
	return at, ok
}

// hears takes note of a word of a pod's agent.
func (s *Server) hears(podUID string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[podUID] = now
	if len(s.heard) <= heardMost {
		return
	}
	for uid, at := range s.heard {
		if now.Sub(at) > heardKept {
			delete(s.heard, uid)
		}
	}
}

// seek asks the store which pods hold slots; the core asks again where there is no answer.
func (g *gang) seek(slots []elastic.Slot) {
	ctx, cancel := context.WithTimeout(g.ctx, seekTime)
	defer cancel()
	answers, err := g.server.Store.Holders(ctx, g.key, slots)
	if err != nil {
		g.server.Log.Info("it is not known which pods hold slots that are not heard", "gang", g.key, "slots", slots, "because", err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range answers {
		g.step(a)
	}
}

// tick tells the core that time passes while it wants to know.
func (g *gang) tick() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-ticker.C:
		}
		g.mu.Lock()
		if g.state.Ticks() {
			g.step(elastic.Tick{})
		}
		g.mu.Unlock()
	}
}
