// Package local serves the agent of one pod on one machine, without Kubernetes. The coordinator runs in this process. Only callers with the
// server's random token are served, over TLS with a certificate that the server makes. The gang's record is in memory: it ends with this
// process, and so do the ranks.
package local

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
)

// key is the key of the only gang.
var key = coordinator.Key{Namespace: "local", Name: "local", Job: "local"}

// validFor is how long the certificate is valid: longer than any run.
const validFor = 10 * 365 * 24 * time.Hour

// Gang is the gang of one pod.
type Gang struct {
	// Pod is its only member.
	Pod elastic.Pod
	// Supervision is what is done about ranks that stand still.
	Supervision elastic.Supervision
	// Notice receives what a cluster shows as events.
	Notice func(elastic.Notice)
}

// Server serves the agent of the gang's pod.
type Server struct {
	// Address is where it serves, CA the authority of its certificate in PEM, Token the agent's token.
	Address, CA, Token string

	server  *coordinator.Server
	cancel  context.CancelFunc
	stopped chan error
}

// Serve serves a gang at a free port of the loopback interface until Stop.
func Serve(g Gang) (*Server, error) {
	s := &Server{Token: token(), stopped: make(chan error, 1)}
	ca, certificate, err := selfSigned(time.Now())
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	s.CA = ca
	elected := make(chan struct{})
	close(elected)
	const loopback = "127.0.0.1:0"
	s.server, err = coordinator.New(coordinator.Options{
		Listen: loopback, TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13},
		Callers: callers{token: s.Token, caller: coordinator.Caller{Key: key, Pod: g.Pod}},
		Store:   &store{gang: g}, Elected: elected, Log: logr.Discard(),
	})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", loopback)
	if err != nil {
		return nil, fmt.Errorf("listening on the loopback interface: %w", err)
	}
	s.Address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.stopped <- s.server.Serve(ctx, listener) }()
	return s, nil
}

// Over records that the run is to end: what its pod still does matters to nothing.
func (s *Server) Over() { s.server.Over(key) }

// Stop ends the server.
func (s *Server) Stop() error {
	s.cancel()
	return <-s.stopped
}

func token() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func selfSigned(now time.Time) (ca string, cert tls.Certificate, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", cert, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validFor), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return "", cert, err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// callers knows one caller by its token; it implements coordinator.Callers.
type callers struct {
	token  string
	caller coordinator.Caller
}

func (c callers) Identify(ctx context.Context) (coordinator.Caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	said := strings.TrimPrefix(strings.Join(md.Get("authorization"), ""), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(said), []byte(c.token)) == 0 {
		return coordinator.Caller{}, status.Error(codes.Unauthenticated, "this token is not that of the run's agent")
	}
	return c.caller, nil
}

func (c callers) Check(context.Context, coordinator.Caller) ([]string, error) { return nil, nil }

// store keeps the gang's record in memory; it implements coordinator.Store. The gang's pod is never deleted or replaced: it ends with the
// run.
type store struct {
	gang   Gang
	mu     sync.Mutex
	record elastic.Record
}

func (s *store) Load(context.Context, coordinator.Key) (int, elastic.Settings, elastic.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 1, elastic.Settings{Supervision: s.gang.Supervision}, s.record, nil
}

func (s *store) Persist(_ context.Context, _ coordinator.Key, r elastic.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = r
	return nil
}

func (s *store) Holders(_ context.Context, _ coordinator.Key, slots []elastic.Slot) ([]elastic.SlotHolder, error) {
	out := make([]elastic.SlotHolder, len(slots))
	for i, slot := range slots {
		out[i] = elastic.SlotHolder{Slot: slot, Pod: s.gang.Pod, Runs: true}
	}
	return out, nil
}

func (s *store) Announce(_ context.Context, _ coordinator.Key, n elastic.Notice) { s.gang.Notice(n) }

func (s *store) Over(context.Context, coordinator.Key) (bool, error)                 { return false, nil }
func (s *store) End(context.Context, coordinator.Key, elastic.Verdict) error         { return nil }
func (s *store) Replace(context.Context, coordinator.Key, elastic.Termination) error { return nil }
func (s *store) Nodes(context.Context, []string) (elastic.NodesKnown, error) {
	return elastic.NodesKnown{}, nil
}
func (s *store) Forgive(context.Context, coordinator.Key, string)                {}
func (s *store) NotePasses(context.Context, coordinator.Key, []elastic.NodePass) {}
func (s *store) NoteTerminating(coordinator.Key, elastic.Pod) bool               { return true }
func (s *store) ForgetTerminating(elastic.Pod)                                   {}
