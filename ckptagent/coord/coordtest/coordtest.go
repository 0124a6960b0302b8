// Package coordtest serves agents in tests, over TLS. Coordinator.Lead makes the real coordinator serve a gang's pods;
// every other pod receives the directives that the test sets by Direct. The test can read all reports of each pod.
package coordtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/coordinator/coordinatortest"
	"holdfast.dev/holdfast/internal/eventually"
)

// Coordinator serves agents; a pod's token is its name.
type Coordinator struct {
	// CA is the authority of its certificate.
	CA string

	cert    tls.Certificate
	addr    string
	callers *coordinatortest.Callers
	store   *coordinatortest.Store
	server  *coordinator.Server
	stop    context.CancelFunc // ends the present server
	stopped chan struct{}      // closed when the server has ended

	mu         sync.Mutex
	reports    map[string][]*v1.Report // all reports of each pod, oldest first
	sent       map[string]*v1.Directive
	directives map[string]*v1.Directive
	gangs      map[string]*Gang // by pod
	lives      map[string]int   // number of pods so far, by name
	led        int              // number of gangs so far
	cut        map[string]context.CancelFunc
	tokens     []string // all tokens received
	deny       error
	named      string // authorities sent to agents
	changed    chan struct{}
}

// Start serves on a free local port until the test ends.
func Start(t testing.TB) *Coordinator {
	t.Helper()
	c := &Coordinator{
		reports:    map[string][]*v1.Report{},
		sent:       map[string]*v1.Directive{},
		directives: map[string]*v1.Directive{},
		gangs:      map[string]*Gang{},
		lives:      map[string]int{},
		cut:        map[string]context.CancelFunc{},
		changed:    make(chan struct{}),
		callers:    &coordinatortest.Callers{},
	}
	c.store = &coordinatortest.Store{Callers: c.callers}
	c.CA, c.cert = certificate(t)
	c.serve(t, "127.0.0.1:0")
	t.Cleanup(c.Stop)
	return c
}

// Name is the certificate's host name, which does not resolve.
const Name = "coordinator.invalid"

// certificate returns a self-signed certificate for Name.
func certificate(t testing.TB) (ca string, cert tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{
			net.IPv4(127, 0, 0, 1),
		}, DNSNames: []string{Name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return ca, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Announce sends agents a second authority. promote makes it sign the certificate once the coordinator serves again.
func (c *Coordinator) Announce(t testing.TB) (promote func()) {
	t.Helper()
	ca, cert := certificate(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named = c.CA + ca
	return func() { c.cert = cert }
}

func (c *Coordinator) authorities() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.named, nil
}

func (c *Coordinator) serve(t testing.TB, addr string) {
	t.Helper()
	leads := make(chan struct{})
	close(leads)
	server, err := coordinator.New(
		coordinator.Options{Listen: addr, TLS: &tls.Config{Certificates: []tls.Certificate{c.cert}, NextProtos: []string{"h2"}},
			Authorities: c.authorities, Callers: c.callers, Store: c.store, Elected: leads, Log: logr.Discard()},
	)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.server = server
	c.addr, c.store.SetPendingReplacements = listener.Addr().String(), server.SetPendingReplacements
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	c.stop, c.stopped = cancel, stopped
	go func() {
		defer close(stopped)
		_ = server.Serve(
			ctx,
			listener,
			grpc.ChainStreamInterceptor(func(srv any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				return c.attach(ctx, srv, rpc, next)
			}),
		)
	}()
}

// Address returns host:port for agents.
func (c *Coordinator) Address() string { return c.addr }

// Stop ends all streams, as the end of the process would; Again serves on the same address.
func (c *Coordinator) Stop() {
	c.stop()
	<-c.stopped
}

// Again restarts a stopped coordinator. It has the stored records of gangs and no reports.
func (c *Coordinator) Again(t testing.TB) {
	c.mu.Lock()
	c.reports = map[string][]*v1.Report{}
	c.mu.Unlock()
	c.serve(t, c.addr)
}

// Deny refuses all further reports with the code; codes.OK: it accepts them again.
func (c *Coordinator) Deny(code codes.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deny = status.Error(code, "refused by the test")
	if code == codes.OK {
		c.deny = nil
	}
}

// attach passes a stream to the real coordinator, if it leads the pod, or to the test.
func (c *Coordinator) attach(serving context.Context, srv any, rpc grpc.ServerStream, next grpc.StreamHandler) error {
	pod := coordinatortest.Token(rpc.Context())
	ctx, cancel := context.WithCancel(rpc.Context())
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	s := &stream{ServerStream: rpc, c: c, pod: pod, ctx: ctx}
	c.mu.Lock()
	c.tokens = append(c.tokens, pod)
	deny, led := c.deny, c.gangs[pod] != nil
	c.cut[pod] = cancel
	c.mu.Unlock()
	switch {
	case deny != nil:
		return deny
	case led:
		return next(srv, s)
	}
	return s.follow()
}

// stream is one agent's stream; it records all messages.
type stream struct {
	grpc.ServerStream
	c   *Coordinator
	pod string
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if m, ok := m.(proto.Message); ok && err == nil { // the coordinator receives reports in a type of its own
		if r, ok := m.ProtoReflect().Interface().(*v1.Report); ok {
			s.c.record(s.pod, proto.CloneOf(r))
		}
	}
	return err
}

func (s *stream) SendMsg(m any) error {
	if d, ok := m.(*v1.Directive); ok {
		s.c.mu.Lock()
		s.c.sent[s.pod] = d
		s.c.mu.Unlock()
	}
	return s.ServerStream.SendMsg(m)
}

// follow sends the agent the test's directives until the stream ends.
func (s *stream) follow() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s.RecvMsg(&v1.Report{}) == nil {
		}
	}()
	var sent *v1.Directive
	for {
		s.c.mu.Lock()
		d, changed := s.c.directives[s.pod], s.c.changed
		s.c.mu.Unlock()
		if d != nil && d != sent {
			if err := s.SendMsg(d); err != nil {
				return err
			}
			sent = d
			continue
		}
		select {
		case <-done:
			return nil
		case <-s.ctx.Done():
			return status.Error(codes.Unavailable, "dial again")
		case <-changed:
		}
	}
}

func (c *Coordinator) record(pod string, r *v1.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[pod] = append(c.reports[pod], r)
	c.wake()
}

func (c *Coordinator) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Direct sets the directive of a pod.
func (c *Coordinator) Direct(pod string, d *v1.Directive) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.directives[pod] = d
	c.wake()
}

// Report returns the newest report of a pod, nil: none.
func (c *Coordinator) Report(pod string) *v1.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return newest(c.reports[pod])
}

func newest(reports []*v1.Report) *v1.Report {
	if len(reports) == 0 {
		return nil
	}
	return reports[len(reports)-1]
}

// Forget drops a pod's reports, because another pod replaces it: streams with its token now belong to the new pod.
func (c *Coordinator) Forget(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reports, pod)
	if g := c.gangs[pod]; g != nil {
		g.create(pod)
	}
}

// Tokens returns all tokens received so far.
func (c *Coordinator) Tokens() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.tokens...)
}

// Await waits for a report of the pod for which is returns true, and returns it. Await checks the newest report and every later one.
func (c *Coordinator) Await(t testing.TB, pod, what string, is func(*v1.Report) bool) *v1.Report {
	t.Helper()
	deadline := time.After(eventually.Timeout)
	for seen := -1; ; {
		c.mu.Lock()
		reports, changed := c.reports[pod], c.changed
		c.mu.Unlock()
		if seen < 0 || seen > len(reports) { // the first check, or Forget was called
			seen = len(reports)
		}
		for _, r := range reports[max(0, min(seen, len(reports)-1)):] { // the newest again: is may also check other state
			if is(r) {
				return r
			}
		}
		seen = len(reports)
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no report that %s within %s; the newest is %v", what, eventually.Timeout, newest(reports))
		}
	}
}
