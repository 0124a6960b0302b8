// Package coordinator serves agents. The coordinator passes reports of agents to package elastic, one gang at a time,
// and sends a decision only after the decision is stored. All decisions are made by package elastic. A restarted
// coordinator rebuilds all of its state from stored records and from reports. Authentication of callers and storage of
// records are interfaces, so that the same server runs on a cluster and in tests.
package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/utils/lru"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

// Key identifies a gang: the Gang object of one job. A job that is re-created with the same name has another key.
type Key struct{ Namespace, Name, Job string }

// ErrSuperseded is Store.Persist's error if this process neither wrote nor read the stored record: another process leads, or led
// meanwhile.
var ErrSuperseded = errors.New("the stored record was written by another process")

// Store stores what must outlive a coordinator (elastic/controller.Controller).
type Store interface {
	// Load returns the number of members of a gang, its settings and its record; an error for which apierrors.IsNotFound is
	// true if there is no such Gang (yet).
	Load(ctx context.Context, key Key) (members int, settings elastic.Settings, r elastic.Record, err error)
	// Over reports whether the gang's Job is gone, has ended or is being deleted.
	Over(ctx context.Context, key Key) (bool, error)
	// Persist stores the record. It refuses to lower a generation, and refuses with ErrSuperseded to overwrite what another process
	// wrote since Load.
	Persist(ctx context.Context, key Key, r elastic.Record) error
	// End fails the gang's job for the verdict's reason, so that it creates no further pod.
	End(ctx context.Context, key Key, v elastic.Verdict) error
	// Replace releases the pod from its job and evicts it or, if it is dead, deletes it. It may be called again for the same pod; for a pod
	// that does not exist it returns nil.
	Replace(ctx context.Context, key Key, d elastic.Termination) error
	// Holders returns the pod of each slot, and whether its containers were started and it is not being deleted; the zero Pod for an empty
	// slot.
	Holders(ctx context.Context, key Key, slots []elastic.Slot) ([]elastic.SlotHolder, error)
	// Nodes returns what is known of nodes from checks, and the usual speeds.
	Nodes(ctx context.Context, names []string) (elastic.NodesKnown, error)
	// NotePasses records that nodes passed the gang's check. What cannot be written is dropped.
	NotePasses(ctx context.Context, key Key, passes []elastic.NodePass)
	// Forgive ends the exclusion of a node for the gang's word that it is slow.
	Forgive(ctx context.Context, key Key, node string)
	// NoteTerminating records that the agent of a pod reported that it is terminating. If its node ends the pod without a deletion,
	// SetPendingReplacements will list it. False: call it again with the agent's next report.
	NoteTerminating(key Key, pod elastic.Pod) bool
	// ForgetTerminating records that the agent of a pod runs and is not terminating: the container may have been restarted since
	// NoteTerminating.
	ForgetTerminating(pod elastic.Pod)
	// Announce writes an event on the gang's job.
	Announce(ctx context.Context, key Key, n elastic.Notice)
}

// Caller is the pod of an agent, with its gang and slot.
type Caller struct {
	Key  Key
	Slot elastic.Slot
	Pod  elastic.Pod
	// Addresses are the pod's; empty: unknown yet, and the agent's reported address counts until they are known.
	Addresses []string
}

// Callers authenticates agents (podtoken.Verifier). Errors are gRPC statuses: UNAVAILABLE: the caller is unknown for now; NOT_FOUND: the
// pod is no longer part of a gang, so that its agent need not wait for an order to exit.
type Callers interface {
	// Identify returns the caller that opened the stream with this context.
	Identify(ctx context.Context) (Caller, error)
	// Check returns why a caller must not continue its stream; nil: it may. addresses are its pod's, as far as known.
	Check(ctx context.Context, c Caller) (addresses []string, err error)
}

const (
	// maxStreams bounds the streams of one connection: an agent needs one, and all share the connection's rate.
	maxStreams = 1
	// maxHeaders bounds the headers of a call, mostly a token; maxIdle is how long a connection may have no stream.
	maxHeaders = 64 << 10
	maxIdle    = 30 * time.Second
	// shutdown bounds how long streams may take to end.
	shutdown = 2 * time.Second
	// idleGang is how long a gang without agents stays in memory.
	idleGang = 5 * time.Minute
)

// Options of New. All fields but Authorities, Metrics and Settled must be set.
type Options struct {
	// Listen is the address to serve at, such as ":7443".
	Listen string
	// TLS is the server's side; its GetCertificate may rotate certificates.
	TLS *tls.Config
	// Authorities are the certificate authorities that agents must trust, in PEM; nil: those that their pods were created with.
	Authorities func() (string, error)
	// Callers is podtoken's Verifier.
	Callers Callers
	// Store is elastic/controller's Controller.
	Store Store
	// Elected is closed when this process leads (mgr.Elected()); until then agents must dial again.
	Elected <-chan struct{}
	Log     logr.Logger
	// Metrics registers the coordinator's metrics (controller-runtime's metrics.Registry).
	Metrics prometheus.Registerer
	// Settled receives each recovery that is complete, again if the record of that is lost; it must not block. nil: none.
	Settled func(Key, elastic.Recovery)
}

// Server is a manager.Runnable that serves on every replica, leader or not.
type Server struct {
	coordinatorv1.UnimplementedCoordinatorServer
	Options
	metrics *metrics
	// ctx ends with Start; no gang outlives it. Guarded by mu where a gang is created.
	ctx context.Context

	mu    sync.Mutex
	gangs map[Key]*gang // guarded by mu
	// contacts is, by pod UID, when its agent last sent anything.
	contacts *lru.Cache
	// polls limits the queries for missing Gangs, of all agents together.
	polls *rate.Limiter

	intake       *intake
	kept         keptReports
	replacements replacementQueue
	agents       atomic.Int64 // open streams
	// contactTimeout is how long an agent may send nothing.
	contactTimeout time.Duration
}

// attached counts streams.
func (s *Server) attached(change int64) int64 { return s.agents.Add(change) }

// New checks the options and returns a Server; add it to the manager with mgr.Add.
func New(o Options) (*Server, error) {
	switch {
	case o.Listen == "":
		return nil, errors.New("coordinator: Listen must be set")
	case o.TLS == nil:
		return nil, errors.New("coordinator: TLS must be set: agents send tokens")
	case o.Callers == nil || o.Store == nil || o.Elected == nil:
		return nil, errors.New("coordinator: Callers, Store and Elected must be set")
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Server{
		Options:        o,
		metrics:        m,
		gangs:          map[Key]*gang{},
		contacts:       lru.New(contactMost),
		polls:          rate.NewLimiter(pollsPerSecond, pollsBurst),
		intake:         newIntake(),
		replacements:   newReplacements(),
		contactTimeout: contactTimeout,
		ctx:            context.Background(),
	}, nil
}

// NeedLeaderElection returns false: the server runs on every replica, and one that does not lead returns an error to agents.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("listening for agents: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve serves at the listener until ctx ends; more is appended to the options of Start.
func (s *Server) Serve(ctx context.Context, listener net.Listener, more ...grpc.ServerOption) error {
	s.mu.Lock()
	s.ctx = ctx // terminations may arrive before agents are served
	s.mu.Unlock()
	for range replacers {
		go s.replaces()
	}
	defer s.replacements.ShutDown()
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(limited(credentials.NewTLS(s.TLS), s.intake)),
		grpc.MaxRecvMsgSize(protocol.MaxReport),
		grpc.ForceServerCodecV2(reportCodec{encoding.GetCodecV2(proto.Name)}),
		grpc.StaticStreamWindowSize(window),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
	}, more...)...)
	coordinatorv1.RegisterCoordinatorServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serving agents: %w", err)
	case <-ctx.Done():
	}
	timer := time.AfterFunc(shutdown, server.Stop)
	defer timer.Stop()
	server.GracefulStop() // streams end with ctx
	return nil
}

func (s *Server) leads() bool {
	select {
	case <-s.Elected:
		return true
	default:
		return false
	}
}

var errNotLeader = status.Error(codes.Unavailable, "this replica is not the leader: dial again")

// gang returns the gang of the key, and loads its record if it is not in memory.
func (s *Server) gang(ctx context.Context, key Key) (*gang, error) {
	s.mu.Lock()
	g := s.gangs[key]
	if g == nil {
		g = newGang(s, key)
		s.gangs[key] = g
	}
	g.users++
	s.mu.Unlock()
	if err := g.load(ctx); err != nil {
		s.release(g)
		return nil, err
	}
	return g, nil
}

// abandon drops a gang whose record another process has written: agents reconnect, and if this process does lead, it reads the record
// again.
func (s *Server) abandon(g *gang) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gangs[g.key] == g {
		delete(s.gangs, g.key)
	}
	g.cancel()
}

// release ends one use of a gang; a gang that is unused for a while is dropped.
func (s *Server) release(g *gang) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.users--; g.users > 0 {
		return
	}
	g.uses++
	uses := g.uses
	time.AfterFunc(s.idle(g), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.users == 0 && g.uses == uses && s.gangs[g.key] == g {
			delete(s.gangs, g.key)
			g.cancel()
		}
	})
}

// idle returns how long a gang may be unused: a gang that never loaded has no state.
func (s *Server) idle(g *gang) time.Duration {
	if !g.loaded() {
		return 0
	}
	return idleGang
}
