// Package coordtest is a coordinator for tests of the agent: it serves the real protocol over TLS, keeps
// the newest report of each pod, and hands out the directives that a test sets. It decides nothing,
// except in Drive, which is the shortest true coordinator of one gang.
package coordtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
)

// Coordinator serves agents; a pod is named by its token.
type Coordinator struct {
	v1.UnimplementedCoordinatorServer
	// CA is what agents verify the certificate with.
	CA string

	cert   tls.Certificate
	server *grpc.Server
	addr   string

	mu         sync.Mutex
	reports    map[string][]*v1.Report // all that each pod sent, the newest last
	directives map[string]*v1.Directive
	attached   map[string]int
	tokens     []string // all that were shown
	deny       error
	changed    chan struct{}
	hook       func(pod string)
}

// Start serves on a free port of this machine until the test ends.
func Start(t testing.TB) *Coordinator {
	t.Helper()
	c := &Coordinator{reports: map[string][]*v1.Report{}, directives: map[string]*v1.Directive{}, attached: map[string]int{}, changed: make(chan struct{})}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	c.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	c.serve(t, "127.0.0.1:0")
	t.Cleanup(c.Stop)
	return c
}

func (c *Coordinator) serve(t testing.TB, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	c.server = grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&c.cert)))
	v1.RegisterCoordinatorServer(c.server, c)
	go c.server.Serve(l) //nolint:errcheck // it ends with Stop
}

// Address is where agents find it.
func (c *Coordinator) Address() string { return c.addr }

// Stop ends all conversations; Again serves anew at the same address, remembering nothing of pods.
func (c *Coordinator) Stop() { c.server.Stop() }

// Again starts a stopped coordinator anew.
func (c *Coordinator) Again(t testing.TB) {
	c.mu.Lock()
	c.reports, c.attached = map[string][]*v1.Report{}, map[string]int{}
	c.mu.Unlock()
	c.serve(t, c.addr)
}

// Deny has all further reports refused with the code; codes.OK: no more.
func (c *Coordinator) Deny(code codes.Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deny = status.Error(code, "told to")
	if code == codes.OK {
		c.deny = nil
	}
}

// Attach takes an agent in.
func (c *Coordinator) Attach(stream v1.Coordinator_AttachServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	pod := strings.TrimPrefix(strings.Join(md.Get("authorization"), ""), "Bearer ")
	c.mu.Lock()
	c.tokens = append(c.tokens, pod)
	deny := c.deny
	c.mu.Unlock()
	if deny != nil {
		return deny
	}
	done := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				done <- nil
				return
			}
			c.heard(pod, r)
		}
	}()
	var sent *v1.Directive
	for {
		c.mu.Lock()
		d, changed := c.directives[pod], c.changed
		c.mu.Unlock()
		if d != nil && d != sent {
			if err := stream.Send(d); err != nil {
				return err
			}
			sent = d
			continue
		}
		select {
		case err := <-done:
			return err
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func (c *Coordinator) heard(pod string, r *v1.Report) {
	c.mu.Lock()
	c.reports[pod] = append(c.reports[pod], r)
	c.attached[pod]++
	hook := c.hook
	c.wake()
	c.mu.Unlock()
	if hook != nil {
		hook(pod)
	}
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

// Report is the newest report of a pod, nil if there is none.
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

// Forget drops what a pod has told, for another takes its place.
func (c *Coordinator) Forget(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reports, pod)
}

// Tokens are all that were shown so far.
func (c *Coordinator) Tokens() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.tokens...)
}

// patience is far more than anything takes on a busy machine.
const patience = 2 * time.Minute

// Await waits until a report of the pod is as asked for, and returns it: the newest, or one that comes after it, however soon
// another follows.
func (c *Coordinator) Await(t testing.TB, pod, what string, is func(*v1.Report) bool) *v1.Report {
	t.Helper()
	deadline := time.After(patience)
	for seen := -1; ; {
		c.mu.Lock()
		reports, changed := c.reports[pod], c.changed
		c.mu.Unlock()
		if seen < 0 || seen > len(reports) { // the first look, or what was seen is forgotten
			seen = len(reports)
		}
		for _, r := range reports[max(0, min(seen, len(reports)-1)):] { // the newest again: is may ask for more than it says
			if is(r) {
				return r
			}
		}
		seen = len(reports)
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no report that %s within %s; the newest is %v", what, patience, newest(reports))
		}
	}
}
