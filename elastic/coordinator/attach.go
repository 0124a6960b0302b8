package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

const (
	// reportsPerSecond and reportsBurst bound the reports of one agent; agents coalesce progress to 100 a second.
	reportsPerSecond, reportsBurst = 200, 400
	// maxNotes and maxSealed bound the entries of a report, and so the memory for it. An arena has at most three slots.
	maxNotes, maxSealed = 32, 3
	// contactTimeout is how long an agent may send nothing; it reports at least every second.
	contactTimeout = 10 * time.Second
	// recheck is the interval at which a stream's pod is looked up again, recheckNew the one while its addresses are unknown; maxAge is how
	// long a stream may live on one token.
	recheck, recheckNew, maxAge = 10 * time.Second, time.Second, 40 * time.Minute
)

// stream is one agent's connection.
type stream struct {
	peer Caller
	// next holds the newest directive that was not sent; it replaces older ones.
	next chan message
	// last is the last message put into next; guarded by the gang.
	last  message
	asked bool
	// knows is the number of modules that the agent reports, sent the number when it last sent their names; guarded by the gang.
	knows, sent int
	// terminating: the store has recorded that the pod is terminating; notTerminating: that it is not. Only the receiver uses them.
	terminating, notTerminating bool
	// addresses are the pod's; none: unknown yet.
	addresses atomic.Pointer[[]string]
	// reports counts reports. sends rises when a directive begins and when it ceases to wait for the agent to read: odd while one waits.
	reports, sends atomic.Uint64
	// gone is closed when another stream of the same pod replaces this one.
	gone chan struct{}
}

// offer replaces the message to be sent to the agent.
func (st *stream) offer(w message) {
	if st.asked && reflect.DeepEqual(st.last, w) {
		return
	}
	st.last, st.asked = w, true
	select {
	case <-st.next:
	default:
	}
	st.next <- w // never blocks: room for one, and a single writer
}

// message is a directive, with the gang's modules if the agent knows none.
type message struct {
	protocol.Directive
	modules *moduleList
}

// Attach serves the stream of one agent.
func (s *Server) Attach(rpc coordinatorv1.Coordinator_AttachServer) error {
	if !s.leads() {
		return errNotLeader
	}
	if compressed(rpc.Context()) {
		return status.Error(codes.Unimplemented, "grpc-encoding: reports are not compressed")
	}
	ctx, cancel := context.WithCancel(rpc.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	in := inletOf(ctx)
	defer in.begin("")()
	peer, err := s.Callers.Identify(ctx)
	if err != nil {
		return err
	}
	defer in.begin(peer.Key.Namespace)()
	g, err := s.gang(ctx, peer.Key)
	if err != nil {
		return err
	}
	defer s.release(g)
	if int(peer.Slot) >= g.members() {
		return status.Errorf(codes.PermissionDenied, "pod %s has index %d, but gang %s has %d members", peer.Pod.Name, peer.Slot, peer.Key.Name, g.members())
	}
	st := &stream{peer: peer, next: make(chan message, 1), gone: make(chan struct{})}
	st.addresses.Store(&peer.Addresses)
	g.attach(st)
	defer g.detach(st)
	s.Log.V(1).Info("an agent has attached", "gang", peer.Key, "slot", peer.Slot, "pod", peer.Pod.Name)

	ends := make(chan error, 3)
	go func() { ends <- s.receive(ctx, g, st, rpc) }()
	go func() { ends <- s.send(ctx, st, rpc) }()
	go func() { ends <- s.watch(ctx, st) }()
	select {
	case err := <-ends:
		return err
	case <-g.ctx.Done():
		return status.Error(codes.Unavailable, "the coordinator is reading the gang's record: dial again")
	case <-st.gone:
		return status.Error(codes.Aborted, "a newer stream of this pod is open")
	case <-ctx.Done():
		return errEnds
	}
}

var errEnds = status.Error(codes.Unavailable, "the coordinator is stopping: dial again")

// send sends directives until the stream ends. send blocks while the agent reads nothing, so no other goroutine may wait for it.
func (s *Server) send(ctx context.Context, st *stream, rpc coordinatorv1.Coordinator_AttachServer) error {
	handed, authorities := false, s.authorities()
	for {
		select {
		case w := <-st.next:
			w.Authorities, authorities = authorities, ""
			if w.modules != nil && !handed { // once per stream, not with each directive
				w.Modules, handed = w.modules.names, true
			}
			st.sends.Add(1)
			if err := rpc.Send(wire.DirectiveMessage(w.Directive)); err != nil {
				return err
			}
			st.sends.Add(1)
		case <-ctx.Done():
			return errEnds
		}
	}
}

// authorities are sent to an agent once per stream: it reconnects within maxAge, long before a new authority signs.
func (s *Server) authorities() string {
	if s.Authorities == nil {
		return ""
	}
	pem, err := s.Authorities()
	if err != nil {
		s.Log.Error(err, "agents do not receive the next certificate authority")
	}
	return pem
}

// receive passes reports to the gang until the stream ends.
func (s *Server) receive(ctx context.Context, g *gang, st *stream, rpc coordinatorv1.Coordinator_AttachServer) error {
	limit := rate.NewLimiter(reportsPerSecond, reportsBurst)
	for {
		if err := limit.Wait(ctx); err != nil {
			return errEnds
		}
		m := &incoming{}
		err := rpc.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.refused
		}
		if err != nil {
			return err
		}
		r := wire.Report(&m.Report)
		if err := check(&r, st.peer.Pod.Name, *st.addresses.Load()); err != nil {
			return err
		}
		clean(&r)
		st.reports.Add(1)
		switch {
		case r.Terminating && !st.terminating:
			st.terminating = s.Store.NoteTerminating(st.peer.Key, st.peer.Pod)
		case !r.Terminating && !st.notTerminating:
			st.notTerminating = true
			s.Store.ForgetTerminating(st.peer.Pod)
		}
		if err := g.reported(st, r); err != nil {
			return err
		}
	}
}

// watch checks regularly that the pod is still the same, and ends streams whose token is old or whose agent sends or reads nothing: its
// node may be gone while the connection still looks alive.
func (s *Server) watch(ctx context.Context, st *stream) error {
	every := recheck
	if len(st.peer.Addresses) == 0 {
		every = recheckNew
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	age := time.NewTimer(maxAge - rand.N(maxAge/4))
	defer age.Stop()
	quiet := time.NewTicker(s.contactTimeout)
	defer quiet.Stop()
	received, sent := uint64(0), uint64(0)
	for {
		select {
		case <-quiet.C:
			reports, sends := st.reports.Load(), st.sends.Load()
			if reports == received {
				return status.Errorf(codes.Unavailable, "no report received for %s: dial again", s.contactTimeout)
			}
			if sends == sent && sends%2 == 1 {
				return status.Errorf(codes.Unavailable, "the agent read nothing for %s: dial again", s.contactTimeout)
			}
			received, sent = reports, sends
		case <-ctx.Done():
			return errEnds
		case <-age.C:
			return status.Error(codes.Unavailable, "the token of this stream has expired: dial again with a new one")
		case <-ticker.C:
			addresses, err := s.Callers.Check(ctx, st.peer)
			if err != nil {
				return err
			}
			if len(addresses) > 0 && len(*st.addresses.Load()) == 0 { // the next report, within a second, is checked against them
				st.addresses.Store(&addresses)
				ticker.Reset(recheck)
			}
		}
	}
}

// check refuses a report that no correct agent sends.
func check(r *protocol.Report, pod string, addresses []string) error {
	if v := r.Protocol; v != protocol.Version {
		return status.Errorf(codes.FailedPrecondition, "the agent uses version %d of the protocol and the coordinator version %d: re-create the pod to get the matching agent", v, protocol.Version)
	}
	texts := append([]string{r.Refused, r.Unprotected}, r.Notes...)
	for i := range r.Rank {
		k := &r.Rank[i]
		if k.Exit != nil {
			texts = append(texts, k.Exit.Traceback)
		}
		if k.Local != i { // exits and copies are stored by rank
			return status.Errorf(codes.InvalidArgument, "entry %d has local rank %d: entries must be in order, one per rank", i, k.Local)
		}
		if n := len(k.Sealed); n > maxSealed {
			return status.Errorf(codes.InvalidArgument, "local rank %d holds %d steps, %d at most", i, n, maxSealed)
		}
		for _, p := range k.Sealed {
			if p.Branch < 0 || p.Branch > protocol.MaxBranch {
				return status.Errorf(codes.InvalidArgument, "local rank %d holds a step of branch %d", i, p.Branch)
			}
		}
	}
	switch {
	case r.Ranks > protocol.MaxRanks || len(r.Rank) > protocol.MaxRanks:
		return status.Errorf(codes.InvalidArgument, "%d ranks on one pod, %d at most", r.Ranks, protocol.MaxRanks)
	case len(r.Rank) > r.Ranks:
		return status.Errorf(codes.InvalidArgument, "rank: %d entries for ranks: %d: at most one for each", len(r.Rank), r.Ranks)
	case len(r.Notes) > maxNotes:
		return status.Errorf(codes.InvalidArgument, "%d notes, %d at most", len(r.Notes), maxNotes)
	case r.Port > 65535:
		return status.Errorf(codes.InvalidArgument, "port %d", r.Port)
	case r.Generation < 0 || r.Generation > protocol.MaxGeneration:
		return status.Errorf(codes.InvalidArgument, "generation %d", r.Generation)
	case r.MaxRestarts != nil && *r.MaxRestarts > protocol.MaxRestarts:
		return status.Errorf(codes.InvalidArgument, "max_restarts %d, %d at most", *r.MaxRestarts, protocol.MaxRestarts)
	case r.Launch > protocol.MaxLaunch || r.Returned > r.Launch:
		return status.Errorf(codes.InvalidArgument, "launch %d, returned %d", r.Launch, r.Returned)
	case r.Address != "" && !isAddress(r.Address):
		return status.Errorf(codes.InvalidArgument, "address: %.100q is no IP address", r.Address)
	case r.Address != "" && len(addresses) > 0 && !slices.Contains(addresses, r.Address):
		return status.Errorf(codes.PermissionDenied, "address %s is not one of pod %s, which has %v", r.Address, pod, addresses)
	case slices.ContainsFunc(texts, func(t string) bool { return len(t) > protocol.MaxText+protocol.MaxText/2 }):
		return status.Errorf(codes.InvalidArgument, "a text of more than %d bytes", protocol.MaxText)
	}
	if err := checkTrials(r); err != nil {
		return err
	}
	return checkLooks(r)
}

// isAddress reports whether a text is an IP address without a zone: a zone may be any text, and no pod's address has one.
func isAddress(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && ip.Zone() == ""
}

// clean escapes terminal control sequences in texts that users will read in the Gang, in events, logs and kubectl.
func clean(r *protocol.Report) {
	r.Refused, r.Unprotected = cause.Printable(r.Refused), cause.Printable(r.Unprotected)
	for i := range r.Notes {
		r.Notes[i] = cause.Printable(r.Notes[i])
	}
	for i := range r.Rank {
		if e := r.Rank[i].Exit; e != nil {
			e.Traceback = cause.Printable(e.Traceback)
		}
	}
	cleanLooks(r)
	cleanTrials(r)
}

func (k Key) String() string { return fmt.Sprintf("%s/%s", k.Namespace, k.Name) }
