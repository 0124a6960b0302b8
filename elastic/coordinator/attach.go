package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
)

const (
	// protocol is the version that this coordinator speaks, oldest the oldest that it understands.
	protocol, oldest = 2, 1
	// reportsPerSecond and reportsBurst bound what one agent may send; progress is coalesced to 100 a second.
	reportsPerSecond, reportsBurst = 200, 400
	// maxRanks, maxNotes and maxSealed bound what one report may hold, and so what is kept of it. An arena has three slots.
	maxRanks, maxNotes, maxSealed, maxText = 1024, 32, 3, 4096
	// silence is how long an agent may say nothing; it reports at least every second.
	silence = 10 * time.Second
	// recheck is how often a stream's pod is looked up again; maxAge how long a stream may live on one token.
	recheck, maxAge = 10 * time.Second, 40 * time.Minute
)

// stream is one agent's connection.
type stream struct {
	peer identity
	// next holds the newest directive that was not sent; older ones are of no use.
	next chan word
	// last is what was put into next last; guarded by the gang.
	last  word
	asked bool
	// knows is how many modules the agent says it knows, sent how many it knew when it last sent them; guarded by the gang.
	knows, sent int
	// version is the protocol's that the agent speaks.
	version atomic.Uint32
	// left: the store knows that the pod leaves, stays: that it does not; used by the receiver alone.
	left, stays bool
	// words counts reports.
	words atomic.Uint64
	// gone ends the stream: another one of the same pod has taken over.
	gone chan struct{}
}

// offer replaces what the agent was to be told.
func (st *stream) offer(w word) {
	if st.asked && reflect.DeepEqual(st.last, w) {
		return
	}
	st.last, st.asked = w, true
	select {
	case <-st.next:
	default:
	}
	st.next <- w // room for one, and this is the only writer
}

// word is what an agent is told.
type word struct {
	elastic.Directive
	// wantModules has the agent send its modules; modules are those of the gang, for an agent that knows none.
	wantModules bool
	modules     *moduleList
}

// Attach is one agent's conversation.
func (s *Server) Attach(rpc coordinatorv1.Coordinator_AttachServer) error {
	if !s.leads() {
		return errNotLeader
	}
	ctx, cancel := context.WithCancel(rpc.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	peer, err := s.guard.admit(ctx)
	if err != nil {
		return err
	}
	g, err := s.gang(ctx, peer.key)
	if err != nil {
		return err
	}
	defer s.release(g)
	if int(peer.slot) >= g.members() {
		return status.Errorf(codes.PermissionDenied, "pod %s has index %d, but gang %s has %d members", peer.pod.Name, peer.slot, peer.key.Name, g.members())
	}
	st := &stream{peer: peer, next: make(chan word, 1), gone: make(chan struct{})}
	g.attach(st)
	defer g.detach(st)
	s.Log.V(1).Info("an agent has attached", "gang", peer.key, "slot", peer.slot, "pod", peer.pod.Name)

	ends := make(chan error, 2)
	go func() { ends <- s.receive(ctx, g, st, rpc) }()
	go func() { ends <- s.watch(ctx, st) }()
	handed := false
	for {
		select {
		case w := <-st.next:
			m := directive(w.Directive, st.version.Load())
			if m.GetProtocol() >= 2 {
				m.WantModules = w.wantModules
				if w.modules != nil && !handed { // once, for directives may be many and an agent too old to take them
					m.Modules, handed = w.modules.names, true
				}
			}
			if err := rpc.Send(m); err != nil {
				return err
			}
		case err := <-ends:
			return err
		case <-g.ctx.Done():
			return status.Error(codes.Unavailable, "what is known of the gang is read anew: dial again")
		case <-st.gone:
			return status.Error(codes.Aborted, "another stream of this pod has taken over")
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "the coordinator ends: dial again")
		}
	}
}

// receive feeds reports to the gang until the stream ends.
func (s *Server) receive(ctx context.Context, g *gang, st *stream, rpc coordinatorv1.Coordinator_AttachServer) error {
	limit := rate.NewLimiter(reportsPerSecond, reportsBurst)
	for {
		if err := limit.Wait(ctx); err != nil {
			return status.Error(codes.Unavailable, "the coordinator ends: dial again")
		}
		m, err := rpc.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := check(m, st.peer); err != nil {
			return err
		}
		st.version.Store(m.GetProtocol())
		st.words.Add(1)
		switch leaving := m.GetLeaving(); {
		case leaving && !st.left:
			st.left = s.Store.Leaves(st.peer.key, st.peer.pod)
		case !leaving && !st.stays:
			st.stays = true
			s.Store.Stays(st.peer.pod)
		}
		g.reported(st, report(m), m)
	}
}

// watch looks now and then whether the pod is still what it was, and ends streams whose proof is old or whose
// agent says nothing: its node may be gone without a word, and the stream would live on.
func (s *Server) watch(ctx context.Context, st *stream) error {
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	age := time.NewTimer(maxAge - rand.N(maxAge/4))
	defer age.Stop()
	quiet := time.NewTicker(s.silence)
	defer quiet.Stop()
	heard := uint64(0)
	for {
		select {
		case <-quiet.C:
			if now := st.words.Load(); now != heard {
				heard = now
				continue
			}
			return status.Errorf(codes.Unavailable, "nothing was heard for %s: dial again", s.silence)
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "the coordinator ends: dial again")
		case <-age.C:
			return status.Error(codes.Unavailable, "the token that this stream was opened with is old: dial again with a fresh one")
		case <-ticker.C:
			if err := s.guard.still(ctx, st.peer); err != nil {
				return err
			}
		}
	}
}

// check refuses what no agent of ours would say.
func check(m *coordinatorv1.Report, peer identity) error {
	if v := m.GetProtocol(); v < oldest || v > protocol {
		return status.Errorf(codes.FailedPrecondition, "the agent speaks version %d of the protocol and the coordinator %d: recreate the pod, so that it gets the agent of this version", m.GetProtocol(), protocol)
	}
	texts := append([]string{m.GetRefused(), m.GetUnprotected()}, m.GetNotes()...)
	for i, k := range m.GetRank() {
		texts = append(texts, k.GetExit().GetTraceback())
		if int64(k.GetLocalRank()) != int64(i) { // exits and copies are kept by rank
			return status.Errorf(codes.InvalidArgument, "entry %d is of local rank %d: one for each, in order", i, k.GetLocalRank())
		}
		if n := len(k.GetSealed()); n > maxSealed {
			return status.Errorf(codes.InvalidArgument, "local rank %d holds %d steps, %d at most", i, n, maxSealed)
		}
	}
	switch {
	case m.GetRanks() > maxRanks || len(m.GetRank()) > maxRanks:
		return status.Errorf(codes.InvalidArgument, "%d ranks on one pod, %d at most", m.GetRanks(), maxRanks)
	case len(m.GetNotes()) > maxNotes:
		return status.Errorf(codes.InvalidArgument, "%d notes, %d at most", len(m.GetNotes()), maxNotes)
	case m.GetPort() > 65535:
		return status.Errorf(codes.InvalidArgument, "port %d", m.GetPort())
	case m.GetGeneration() > 1<<52:
		return status.Errorf(codes.InvalidArgument, "generation %d", m.GetGeneration())
	case m.GetAddress() != "" && len(peer.addresses) > 0 && !slices.Contains(peer.addresses, m.GetAddress()):
		return status.Errorf(codes.PermissionDenied, "address %s is not one of pod %s, which has %v", m.GetAddress(), peer.pod.Name, peer.addresses)
	case slices.ContainsFunc(texts, func(t string) bool { return len(t) > maxText+maxText/2 }):
		return status.Errorf(codes.InvalidArgument, "a text of more than %d bytes", maxText)
	}
	return nil
}

func (k Key) String() string { return fmt.Sprintf("%s/%s", k.Namespace, k.Name) }
