// Package coord is the agent's connection to the coordinator. Client.Run reconnects until its context ends or Finish
// was called, and reads the pod's token again for each connection. The client sends the newest report at once if it is
// urgent (ckptagent.Urgent), within 10 ms if it is not, and once a second in any case. The client passes directives of
// the coordinator to Options.Directed in the order in which they arrive.
package coord

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

// Timing of the stream.
const (
	heartbeat = time.Second
	coalesce  = 10 * time.Millisecond
	backoff   = 50 * time.Millisecond
	// backoffMax bounds the pause between attempts; deniedMax after a token was refused.
	backoffMax = time.Second
	deniedMax  = 5 * time.Second
	// attach bounds one attempt to connect; silent is how long sent bytes may stay unacknowledged.
	attach         = 5 * time.Second
	contactTimeout = 5 * time.Second
)

// Options of New.
type Options struct {
	// Target is host:port of the coordinator; its certificate must be for this host. If the name cannot be reached, Addresses are dialed in
	// turn: a pod on its node's network may not resolve the cluster's names.
	Target    string
	Addresses []netip.Addr
	// CA is the PEM of the authorities for that certificate, from the pod's template. AuthoritiesFile stores those that the coordinator
	// sent since. Both are trusted.
	CA, AuthoritiesFile string
	// TokenFile holds the projected token.
	TokenFile string
	// Address is this pod's address for other pods.
	Address string
	// Directed is called with each directive. Disconnected is called with the reason when a stream ends or authorities cannot be stored.
	// Contact is called when the coordinator is reached and when it is lost, DetachedFromJob when the coordinator reports that the pod has
	// left its job.
	Directed        func(protocol.Directive)
	Disconnected    func(error)
	Contact         func(up bool)
	DetachedFromJob func()
}

// Client maintains the stream to the coordinator.
type Client struct {
	o Options
	// targets are the addresses to dial: first Target.
	targets []string
	// tls, authorities (the last that were sent) and dialing (the index of the next target) belong to Run.
	tls         *tls.Config
	authorities string
	dialing     int

	mu     sync.Mutex
	report protocol.Report
	seq    uint64 // the report's number
	known  bool
	finish chan struct{} // closed: send the last report
	urgent chan struct{} // send at once
	soon   chan struct{} // send within coalesce
}

// New returns a Client, or an error for invalid options.
func New(o Options) (*Client, error) {
	host, port, err := net.SplitHostPort(o.Target)
	if err != nil {
		return nil, fmt.Errorf("reading the coordinator's address %q: %w", o.Target, err)
	}
	c := &Client{
		o: o, finish: make(chan struct{}), urgent: make(chan struct{}, 1), soon: make(chan struct{}, 1),
		tls: &tls.Config{ServerName: host, MinVersion: tls.VersionTLS13}, targets: []string{o.Target},
	}
	for _, a := range o.Addresses {
		c.targets = append(c.targets, net.JoinHostPort(a.String(), port))
	}
	if kept, err := os.ReadFile(o.AuthoritiesFile); err == nil {
		c.authorities = string(kept)
	}
	if c.tls.RootCAs, err = pool(o.CA, ""); err != nil {
		return nil, fmt.Errorf("reading the coordinator's CA: %w", err)
	}
	if both, err := pool(o.CA, c.authorities); err == nil { // else the stored file is damaged, and the coordinator sends them again
		c.tls.RootCAs = both
	}
	return c, nil
}

// pool returns the authorities of the pod's template and those sent since, which may be empty.
func pool(made, named string) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM([]byte(made)) || named != "" && !p.AppendCertsFromPEM([]byte(named)) {
		return nil, errors.New("no certificate in it")
	}
	return p, nil
}

// trust adds the authorities that the coordinator sent, and stores them for the next agent.
func (c *Client) trust(authorities string) error {
	if authorities == "" || authorities == c.authorities {
		return nil
	}
	if n := len(authorities); n > protocol.MaxAuthorities {
		return fmt.Errorf("the coordinator names %d bytes of certificate authorities, %d at most", n, protocol.MaxAuthorities)
	}
	both, err := pool(c.o.CA, authorities)
	if err != nil {
		return fmt.Errorf("reading the certificate authorities that the coordinator names: %w", err)
	}
	c.tls = c.tls.Clone()
	c.tls.RootCAs = both
	if c.o.AuthoritiesFile != "" { // a failed write is retried when they are sent again
		part := c.o.AuthoritiesFile + ".part"
		err := os.WriteFile(part, []byte(authorities), 0o600)
		if err == nil {
			err = os.Rename(part, c.o.AuthoritiesFile)
		}
		if err != nil {
			return fmt.Errorf("keeping the certificate authorities that the coordinator names: %w", err)
		}
	}
	c.authorities = authorities
	return nil
}

// Update sets the report to send.
func (c *Client) Update(r protocol.Report) {
	c.mu.Lock()
	wake := c.soon
	if !c.known || ckptagent.Urgent(r, c.report) {
		wake = c.urgent
	}
	c.report, c.known = r, true
	c.seq++
	c.mu.Unlock()
	select {
	case wake <- struct{}{}:
	default:
	}
}

// errFinished ends the stream after the last report.
var errFinished = errors.New("finished")

// Finish sends the newest report for the last time; Run returns once the coordinator has read it.
func (c *Client) Finish() { close(c.finish) }

// Run keeps a stream open until ctx ends, or after Finish.
func (c *Client) Run(ctx context.Context) {
	pause := backoff
	for ctx.Err() == nil {
		answered, err := c.converse(ctx)
		if answered && c.o.Contact != nil {
			c.o.Contact(false)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.finish:
			if answered {
				return
			}
		default:
		}
		most := backoffMax
		switch status.Code(err) {
		case codes.Unauthenticated, codes.PermissionDenied:
			most = deniedMax
		case codes.NotFound:
			if most = deniedMax; c.o.DetachedFromJob != nil {
				c.o.DetachedFromJob()
			}
		}
		if answered {
			pause = backoff
		}
		if c.o.Disconnected != nil {
			c.o.Disconnected(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(pause*2, most)
	}
}

// converse runs one stream; answered is true once the coordinator answered.
func (c *Client) converse(ctx context.Context) (answered bool, err error) {
	token, err := os.ReadFile(c.o.TokenFile)
	if err != nil {
		return false, fmt.Errorf("reading the token: %w", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+c.targets[c.dialing],
		grpc.WithTransportCredentials(credentials.NewTLS(c.tls)), grpc.WithContextDialer(dial),
		grpc.WithReadBufferSize(4096), grpc.WithWriteBufferSize(4096), grpc.WithDisableServiceConfig())
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	guard := time.AfterFunc(attach, cancel)
	stream, err := v1.NewCoordinatorClient(conn).Attach(ctx)
	guard.Stop()
	if err != nil { // no connection
		c.dialing = (c.dialing + 1) % len(c.targets)
		return false, err
	}
	first := c.latest()
	if err := stream.Send(first); err != nil {
		return false, recvError(stream, err)
	}
	sent := make(chan error, 1)
	go func() {
		err := c.send(ctx, stream)
		sent <- err
		if !errors.Is(err, errFinished) { // else the coordinator ends the stream after it has read all of it
			cancel()
		}
	}()
	for {
		d, err := stream.Recv()
		if err != nil {
			cancel()
			<-sent
			return answered, err
		}
		if !answered && c.o.Contact != nil {
			c.o.Contact(true)
		}
		answered = true
		said := wire.Directive(d)
		if err := c.trust(said.Authorities); err != nil && c.o.Disconnected != nil {
			c.o.Disconnected(err)
		}
		said.Authorities = ""
		c.o.Directed(said)
	}
}

// recvError returns why a stream ended; Send does not return that.
func recvError(stream v1.Coordinator_AttachClient, err error) error {
	if _, why := stream.Recv(); why != nil {
		return why
	}
	return err
}

func (c *Client) latest() *v1.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.report
	r.Protocol, r.Address, r.Sequence = protocol.Version, c.o.Address, c.seq
	return wire.ReportMessage(r)
}

// send sends the newest report whenever one is due.
func (c *Client) send(ctx context.Context, stream v1.Coordinator_AttachClient) error {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.finish:
			if err := stream.Send(c.latest()); err != nil {
				return err
			}
			return errors.Join(stream.CloseSend(), errFinished)
		case <-c.urgent:
		case <-beat.C:
		case <-c.soon:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.urgent:
			case <-time.After(coalesce):
			}
		}
		if err := stream.Send(c.latest()); err != nil {
			return err
		}
	}
}

// dial connects with a short timeout for unacknowledged data, so that a vanished peer is noticed: a report is sent every second.
func dial(ctx context.Context, target string) (net.Conn, error) {
	d := net.Dialer{Timeout: attach, Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(contactTimeout.Milliseconds()))
		})
	}}
	return d.DialContext(ctx, "tcp", target)
}
