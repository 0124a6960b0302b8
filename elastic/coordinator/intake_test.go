package coordinator

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/wire"
)

// sender is a connection that sends without a pause, and is read as gRPC reads.
type sender struct {
	*inlet
	read atomic.Int64
	over chan error
}

// sends makes a pod of a namespace send n bytes; 0: without end.
func sends(t *testing.T, in *intake, namespace string, n int64) *sender {
	there, here := net.Pipe()
	s := &sender{inlet: in.inlet(here), over: make(chan error, 1)}
	s.begin(namespace)
	t.Cleanup(func() { _, _ = s.Close(), there.Close() })
	go func() {
		chunk := make([]byte, 16<<10)
		for sent := int64(0); n == 0 || sent < n; sent += int64(len(chunk)) {
			if _, err := there.Write(chunk); err != nil {
				return
			}
		}
	}()
	go func() {
		chunk := make([]byte, 32<<10)
		for {
			got, err := s.Read(chunk)
			s.read.Add(int64(got))
			if err != nil {
				s.over <- err
				return
			}
		}
	}()
	return s
}

func TestConnectionsAreReadAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sends(t, newIntake(), "team-a", 0)
		time.Sleep(10 * time.Second)
		most := int64(11*bytesPerSecond + window)
		if n := s.read.Load(); n > most || n < most*9/10 {
			t.Errorf("%d bytes in 10 s, want %d", n, most)
		}
	})
}

// TestNamespacesAreReadAtARate: all connections of a namespace's pods together are read at a limited rate. Other namespaces have their own
// rate, and nothing stays in memory of ended connections.
func TestNamespacesAreReadAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, seconds = 100, 10
		in := newIntake()
		var flood []*sender
		for range connections {
			flood = append(flood, sends(t, in, "team-a", 0))
		}
		other := sends(t, in, "team-b", 0)
		time.Sleep(seconds * time.Second)
		sum := int64(0)
		for _, s := range flood {
			sum += s.read.Load()
		}
		if most := int64((seconds+1)*namespaceBytesPerSecond + connections*window); sum > most || sum < most*9/10 {
			t.Errorf("%d MiB of one namespace in %d s, want %d", sum>>20, seconds, most>>20)
		}
		if n, want := other.read.Load(), int64((seconds+1)*bytesPerSecond); n < want*9/10 {
			t.Errorf("%d MiB of another one, want %d", n>>20, want>>20)
		}
		for _, s := range append(flood, other) {
			s.begin("team-c")()
			_ = s.Close()
		}
		if len(in.rates) != 0 {
			t.Errorf("rates of %d namespaces are left", len(in.rates))
		}
	})
}

// stalling lets through a number of bytes and no more.
type stalling struct {
	net.Conn
	left atomic.Int64
	over chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	if s.left.Add(-int64(len(p))) < 0 {
		<-s.over
	}
	return s.Conn.Write(p)
}

// TestAHalfSentReportEndsItsStream: an incomplete report ends its stream, like the absence of reports.
func TestAHalfSentReportEndsItsStream(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	h := &house{t: t, store: newMemory(), tokens: map[string]Caller{}, contactTimeout: 2 * time.Second}
	h.serve(leading())
	h.store.members[mine.Key] = 1
	over := make(chan struct{})
	defer close(over)
	a := h.dial(h.allow(mine), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		s := &stalling{Conn: c, over: over}
		s.left.Store(protocol.MaxReport / 2)
		return s, err
	}))
	a.report = wire.ReportMessage(fullest())
	go a.say()
	if err := <-a.ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no report received for 2s") {
		t.Errorf("ended with %v", err)
	}
}
