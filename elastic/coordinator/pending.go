package coordinator

import (
	"context"
	"errors"
	"time"

	"holdfast.dev/holdfast/elastic"
)

const (
	// tickEvery is the interval of Tick events while the core waits for pods to be replaced.
	tickEvery = 100 * time.Millisecond
	// lookupTime bounds a query for the holders of slots.
	lookupTime = 10 * time.Second
	// contactMost is the number of agents whose last contact is stored; beyond it the oldest are dropped.
	contactMost = 1 << 17
)

// SetPendingReplacements sets the level of a gang: every pod that must be replaced now. A gang that is not in memory is loaded.
// SetPendingReplacements returns UNAVAILABLE if this process does not lead.
func (s *Server) SetPendingReplacements(ctx context.Context, key Key, pods []elastic.Termination) error {
	return s.level(ctx, key, elastic.ReplacementsPending{Pods: pods})
}

// Suspended is SetPendingReplacements for a gang whose Job is suspended: all its pods terminate, and none is replaced for now.
func (s *Server) Suspended(ctx context.Context, key Key, pods []elastic.Termination) error {
	return s.level(ctx, key, elastic.Suspended{Pods: pods})
}

// SetPlaced sets the level of a gang with a minimum: where its pods are. A gang that is not in memory is loaded.
func (s *Server) SetPlaced(ctx context.Context, key Key, pods []elastic.Placement) error {
	return s.level(ctx, key, elastic.Placed{Pods: pods})
}

// SetSettings sets the settings of a gang's job that may change: what stays in storage, and what is done about ranks that stand still. A
// gang that is not in memory reads them when it is loaded.
func (s *Server) SetSettings(ctx context.Context, key Key, job elastic.Settings) error {
	s.mu.Lock()
	known := s.gangs[key] != nil
	s.mu.Unlock()
	if !known {
		return nil
	}
	err := s.level(ctx, key, job.Events()...) // waits for a gang that is being loaded, which may have read older settings
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}

func (s *Server) level(ctx context.Context, key Key, events ...elastic.Event) error {
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
	for _, e := range events {
		g.step(e)
	}
	return nil
}

// Over records that a gang's Job has ended or is being deleted. An unknown gang has no agents here.
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

// LastContact returns when the agent of a pod last sent anything to this process.
func (s *Server) LastContact(podUID string) (time.Time, bool) {
	at, ok := s.contacts.Get(podUID)
	if !ok {
		return time.Time{}, false
	}
	return at.(time.Time), true
}

// noteContact records that a pod's agent sent something.
func (s *Server) noteContact(podUID string, now time.Time) { s.contacts.Add(podUID, now) }

// lookUpHolders queries which pods hold slots; if that fails, the core queries again.
func (g *gang) lookUpHolders(slots []elastic.Slot) {
	ctx, cancel := context.WithTimeout(g.ctx, lookupTime)
	defer cancel()
	answers, err := g.server.Store.Holders(ctx, g.key, slots)
	if err != nil {
		g.server.Log.Info("querying which pods hold the slots of unreachable agents", "gang", g.key, "slots", slots, "because", err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range answers {
		g.step(a)
	}
}

// lookUpNodes queries what is known of nodes from checks; if that fails, nothing is known.
func (g *gang) lookUpNodes(names []string) {
	ctx, cancel := context.WithTimeout(g.ctx, lookupTime)
	defer cancel()
	known, err := g.server.Store.Nodes(ctx, names)
	if err != nil {
		g.server.Log.Info("querying which nodes passed a check", "gang", g.key, "because", err.Error())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step(known)
}

// tick sends Tick to the core while State.Ticks is true.
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
