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
	// smallReport is what a connection may have sent of a report that is not whole yet: tracebacks of some sixty ranks. Beyond it the
	// connection takes one of the turns for large reports, so that many that are half sent fill no memory.
	smallReport = 256 << 10
	// largeAtOnce and largeOfNamespace are these turns, in all and of one namespace. largeTime is how long one lasts. Who is told that it
	// was too long, or that the stream has ended, has lateTime to listen.
	largeAtOnce, largeOfNamespace = 8, 2
	largeTime, lateTime           = 5 * time.Second, time.Second
	// bytesPerSecond is what one connection is read at, after a burst of one report: one of the largest takes less than contactTimeout.
	bytesPerSecond = 2 << 20
	// namespaceBytesPerSecond is what all connections of one namespace are read at, after a burst of as much: twenty times what 5,000
	// pods of eight ranks say in a second without news. A window of each of so many is read in 5 s, half of contactTimeout.
	namespaceBytesPerSecond = 64 << 20
	// window is what a stream may send before anybody reads it.
	window = 64 << 10
)

// intake shares out the turns for large reports, and how fast a namespace is read.
type intake struct {
	// turnTime is how long a turn lasts. lateTime is how long an agent may listen after its turn or its stream is over.
	turnTime, lateTime time.Duration

	mu    sync.Mutex
	freed sync.Cond
	taken int                    // guarded by mu
	of    map[string]int         // taken, by namespace; guarded by mu
	rates map[string]*sharedRate // by namespace; guarded by mu
}

// sharedRate is what the connections of one namespace are read at together.
type sharedRate struct {
	*rate.Limiter
	connections int
}

func newIntake() *intake {
	i := &intake{turnTime: largeTime, lateTime: lateTime, of: map[string]int{}, rates: map[string]*sharedRate{}}
	i.freed.L = &i.mu
	return i
}

// inlet is a connection whose bytes are counted until they are a report.
type inlet struct {
	net.Conn
	intake *intake
	rate   *rate.Limiter
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	// shared is the rate of its namespace; nil: nobody knows yet who calls.
	shared atomic.Pointer[sharedRate]
	// bytes came since the last report.
	bytes atomic.Int64
	// late has room for one.
	late chan struct{}

	stream    int         // the one that speaks; this and all below guarded by intake.mu
	namespace string      // its pod's; "": nobody knows yet who calls
	turn      *time.Timer // ends the turn that is taken; nil: none is
	holder    string      // the namespace that it counts for
	over      *time.Timer // closes the connection after its stream; nil: none has ended
}

// inlet counts what comes by a connection.
func (i *intake) inlet(c net.Conn) *inlet {
	ctx, cancel := context.WithCancel(context.Background())
	return &inlet{Conn: c, intake: i, rate: rate.NewLimiter(bytesPerSecond, maxMessage), ctx: ctx, cancel: cancel, late: make(chan struct{}, 1)}
}

// Read reads no faster than it may, and nothing beyond smallReport without a turn.
func (c *inlet) Read(p []byte) (int, error) {
	if c.bytes.Load() > smallReport && !c.takeTurn() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p[:min(len(p), window)])
	c.bytes.Add(int64(n))
	wait := c.rate.WaitN(c.ctx, n)
	if shared := c.shared.Load(); shared != nil && wait == nil {
		wait = shared.WaitN(c.ctx, n)
	}
	if err == nil {
		err = wait
	}
	return n, err
}

// belongs says whose pod's stream the connection carries from now on; "": nobody's. intake.mu is held.
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

// takeTurn waits for a turn, or until none is needed any more. It reports whether the connection may be read.
func (c *inlet) takeTurn() bool {
	i := c.intake
	i.mu.Lock()
	defer i.mu.Unlock()
	for c.ctx.Err() == nil && c.turn == nil && c.bytes.Load() > smallReport {
		if c.namespace == "" || i.taken == largeAtOnce || i.of[c.namespace] == largeOfNamespace {
			i.freed.Wait()
			continue
		}
		i.taken++
		i.of[c.namespace]++
		c.holder = c.namespace
		c.turn = time.AfterFunc(i.turnTime, c.expire)
	}
	return c.ctx.Err() == nil
}

// expire ends the stream whose turn is over, and the connection where nobody there listens.
func (c *inlet) expire() {
	c.intake.mu.Lock()
	defer c.intake.mu.Unlock()
	if c.turn == nil { // the report has become whole just now
		return
	}
	select {
	case c.late <- struct{}{}:
	default:
	}
	c.turn = time.AfterFunc(c.intake.lateTime, func() { _ = c.Close() })
}

// begin says whose stream the connection carries now. The function that it returns says that the stream is over: where no other one follows,
// the connection is closed. What an agent has not read of a stream is kept here, the end behind it, for as long as its connection lasts, and
// one pod may open many.
func (c *inlet) begin(namespace string) (end func()) {
	if c == nil {
		return func() {}
	}
	c.intake.mu.Lock()
	defer c.intake.mu.Unlock()
	c.stream++
	mine := c.stream
	c.belongs(namespace)
	c.reset()
	if c.over != nil {
		c.over.Stop()
	}
	select {
	case <-c.late: // it was meant for the one before
	default:
	}
	return func() {
		c.intake.mu.Lock()
		defer c.intake.mu.Unlock()
		if c.stream == mine { // else the next one has begun
			c.belongs("")
			c.reset()
			c.over = time.AfterFunc(c.intake.lateTime, func() { _ = c.Close() })
		}
	}
}

// whole says that a report is, and was taken in. What is read already of the next, a window at most, is not counted.
func (c *inlet) whole() {
	if c == nil || c.bytes.Swap(0) <= smallReport { // then it has no turn and waits for none
		return
	}
	c.intake.mu.Lock()
	defer c.intake.mu.Unlock()
	c.reset()
}

// reset gives a turn back. intake.mu is held.
func (c *inlet) reset() {
	c.bytes.Store(0)
	if c.turn != nil {
		c.turn.Stop()
		c.turn = nil
		c.intake.taken--
		if c.intake.of[c.holder]--; c.intake.of[c.holder] == 0 {
			delete(c.intake.of, c.holder)
		}
	}
	c.intake.freed.Broadcast()
}

// Close implements net.Conn.
func (c *inlet) Close() error {
	c.cancel()
	c.intake.mu.Lock()
	c.reset()
	c.intake.mu.Unlock()
	return c.Conn.Close()
}

// tooLate tells where a turn is over and the report is not whole.
func (c *inlet) tooLate() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.late
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
