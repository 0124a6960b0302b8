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
	// bytesPerSecond is the rate, and the burst, at which one connection is read.
	bytesPerSecond = 2 << 20
	// namespaceBytesPerSecond is the rate, and the burst, at which all connections of one namespace are read: twenty times what 5,000 pods
	// of eight ranks send per second in normal operation. One window of each of these is read in 5 s, half of contactTimeout.
	namespaceBytesPerSecond = 64 << 20
	// window is how many bytes a stream may send before they are read.
	window = 64 << 10
	// endTime is how long an agent has to read why its stream has ended before the connection is closed.
	endTime = time.Second
)

// intake limits the rate at which connections are read.
type intake struct {
	mu    sync.Mutex
	rates map[string]*sharedRate // by namespace; guarded by mu
}

// sharedRate is the rate of the connections of one namespace.
type sharedRate struct {
	*rate.Limiter
	connections int
}

func newIntake() *intake { return &intake{rates: map[string]*sharedRate{}} }

// inlet is a connection with a limited read rate.
type inlet struct {
	net.Conn
	intake *intake
	rate   *rate.Limiter
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	// shared is the rate of its namespace; nil: the caller is unknown yet.
	shared atomic.Pointer[sharedRate]

	stream    int         // the present one; this and all below guarded by intake.mu
	namespace string      // of its pod; "": the caller is unknown yet
	over      *time.Timer // closes the connection after its stream; nil: none has ended
}

// inlet limits the rate at which a connection is read.
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

// belongs sets the namespace of the connection's present stream; "": none. The caller holds intake.mu.
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

// begin sets the namespace of the connection's next stream. The returned function ends the stream: if no other follows within endTime, the
// connection is closed. What an agent has not read of a stream occupies memory here as long as its connection lasts, and one pod may open
// many.
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
		if c.stream == mine { // else the next stream has begun
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

// counted passes the inlet of a connection to its streams.
type counted struct {
	credentials.AuthInfo
	inlet *inlet
}

// inletOf returns the inlet of a stream; nil: its connection has none.
func inletOf(ctx context.Context) *inlet {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(counted); ok {
			return c.inlet
		}
	}
	return nil
}
