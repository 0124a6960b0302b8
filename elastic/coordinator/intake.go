package coordinator

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

const (
	// bytesPerSecond is what one connection is read at, after a burst of as much.
	bytesPerSecond = 2 << 20
	// namespaceBytesPerSecond is what all connections of one namespace are read at, after a burst of as much: twenty times what 5,000
	// pods of eight ranks say in a second without news. A window of each of so many is read in 5 s, half of contactTimeout.
	namespaceBytesPerSecond = 64 << 20
	// window is what a stream may send before it is read.
	window = 64 << 10
	// endTime is how long an agent has to read why its stream has ended, until the connection is closed.
	endTime = time.Second
)

// intake bounds how fast connections are read.
type intake struct {
	mu    sync.Mutex
	rates map[string]*sharedRate // by namespace; guarded by mu
}

// sharedRate is what the connections of one namespace are read at together.
type sharedRate struct {
	*rate.Limiter
	connections int
}

func newIntake() *intake { return &intake{rates: map[string]*sharedRate{}} }

// inlet is a connection that is read no faster than it may.
type inlet struct {
	net.Conn
	intake *intake
	rate   *rate.Limiter
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	// shared is the rate of its namespace; nil: it is not known yet who calls.
	shared atomic.Pointer[sharedRate]

	stream    int         // the one that speaks; this and all below guarded by intake.mu
	namespace string      // its pod's; "": it is not known yet who calls
	over      *time.Timer // closes the connection after its stream; nil: none has ended
}

// inlet bounds how fast a connection is read.
func (i *intake) inlet(c net.Conn) *inlet {
	ctx, cancel := context.WithCancel(context.Background())
	return &inlet{Conn: c, intake: i, rate: rate.NewLimiter(bytesPerSecond, bytesPerSecond), ctx: ctx, cancel: cancel}
}

// Read implements net.Conn.
func (c *inlet) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), window)])
	wait := c.rate.WaitN(c.ctx, n)
	if shared := c.shared.Load(); shared != nil && wait == nil {
		wait = shared.WaitN(c.ctx, n)
	}
	if err == nil {
		err = wait
	}
	return n, err
}

// belongs sets the namespace whose pod's stream the connection carries from now on; "": none. intake.mu is held.
func (c *inlet) belongs(namespace string) {
	i := c.intake
	if old := c.shared.Swap(nil); old != nil {
		if old.connections--; old.connections == 0 {
			delete(i.rates, c.namespace)
		}
	}
	if c.namespace = namespace; namespace == "" {
		return
	}
	shared := i.rates[namespace]
	if shared == nil {
		shared = &sharedRate{Limiter: rate.NewLimiter(namespaceBytesPerSecond, namespaceBytesPerSecond)}
		i.rates[namespace] = shared
	}
	shared.connections++
	c.shared.Store(shared)
}

// begin sets whose stream the connection carries now. The function that it returns ends the stream: where no other one follows within
// endTime, the connection is closed. What an agent has not read of a stream is kept here, the end behind it, for as long as its connection
// lasts, and one pod may open many.
func (c *inlet) begin(namespace string) (end func()) {
	if c == nil {
		return func() {}
	}
	c.intake.mu.Lock()
	defer c.intake.mu.Unlock()
	c.stream++
	mine := c.stream
	c.belongs(namespace)
	if c.over != nil {
		c.over.Stop()
	}
	return func() {
		c.intake.mu.Lock()
		defer c.intake.mu.Unlock()
		if c.stream == mine { // else the next one has begun
			c.belongs("")
			c.over = time.AfterFunc(endTime, func() { _ = c.Close() })
		}
	}
}

// Close implements net.Conn.
func (c *inlet) Close() error {
	c.cancel()
	return c.Conn.Close()
}

// counted hands the inlet of a connection on to its streams.
type counted struct {
	credentials.AuthInfo
	inlet *inlet
}

// inletOf is the inlet that a stream comes by; nil where the connection is none of ours.
func inletOf(ctx context.Context) *inlet {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(counted); ok {
			return c.inlet
		}
	}
	return nil
}
