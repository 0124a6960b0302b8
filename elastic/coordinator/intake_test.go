package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/internal/protocol/wire"
)

// sender is a connection that somebody sends by without a pause, and that is read as gRPC reads.
type sender struct {
	*inlet
	read atomic.Int64
	over chan error
}

// sends has a pod of a namespace send n bytes, for ever where n is 0.
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

// TestHalfSentReportsFillNoMemory: however many pods send a part of one, of one namespace or of many.
func TestHalfSentReportsFillNoMemory(t *testing.T) {
	for _, namespaces := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(namespaces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := newIntake()
				var all []*sender
				for i := range 300 {
					all = append(all, sends(t, in, fmt.Sprint("team-", i%namespaces), maxMessage-smallReport))
				}
				time.Sleep(largeTime / 2)
				synctest.Wait()
				sum, large := int64(0), 0
				for _, s := range all {
					if n := s.read.Load(); n > smallReport+window {
						large++
					}
					sum += s.read.Load()
				}
				turns := min(largeAtOnce, namespaces*largeOfNamespace)
				if most := int64(len(all)*(smallReport+window) + turns*maxMessage); sum > most || large != turns {
					t.Errorf("%d MiB were read, %d at most; %d are large, want %d", sum>>20, most>>20, large, turns)
				}
			})
		})
	}
}

// TestTurnsForLargeReportsEnd: others have theirs when a report is whole, when its stream or connection ends, and when it takes too long.
func TestTurnsForLargeReportsEnd(t *testing.T) {
	for name, ends := range map[string]func(*sender){
		"whole":      func(s *sender) { s.whole() },
		"the stream": func(s *sender) { s.begin("")() },
		"closed":     func(s *sender) { _ = s.Close() },
		"too long":   func(*sender) { time.Sleep(largeTime + lateTime) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := newIntake()
				for range largeOfNamespace - 1 {
					sends(t, in, "team-a", smallReport+1)
				}
				first := sends(t, in, "team-a", smallReport+3*window)
				time.Sleep(time.Second)
				second := sends(t, in, "team-a", smallReport+3*window)
				time.Sleep(time.Second)
				if n := second.read.Load(); n > smallReport+window {
					t.Fatalf("%d bytes were read with all turns taken", n)
				}
				ends(first)
				time.Sleep(time.Second)
				if first.read.Load() < smallReport+2*window || second.read.Load() < smallReport+2*window {
					t.Errorf("%d bytes were read, and %d of the one that waited", first.read.Load(), second.read.Load())
				}
				if name != "too long" {
					return
				}
				select {
				case <-first.tooLate():
				default:
					t.Error("nobody is told")
				}
				if err := <-first.over; !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, net.ErrClosed) {
					t.Errorf("the connection ended with %v", err)
				}
			})
		})
	}
}

// TestTheRestIsReadOnceAStreamBegins: whoever calls is not known before, so that nobody has a turn.
func TestTheRestIsReadOnceAStreamBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sends(t, newIntake(), "", 2*smallReport)
		time.Sleep(time.Second)
		if n := s.read.Load(); n > smallReport+window {
			t.Errorf("%d bytes were read of nobody", n)
		}
		s.begin("team-a")
		time.Sleep(time.Second)
		if n := s.read.Load(); n != 2*smallReport {
			t.Errorf("%d bytes were read", n)
		}
	})
}

// TestConnectionsAreReadAtARate: also where each report is whole at once.
func TestConnectionsAreReadAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sends(t, newIntake(), "team-a", 0)
		begun := time.Now()
		for time.Since(begun) < 10*time.Second {
			s.whole()
			time.Sleep(10 * time.Millisecond)
		}
		most := int64(maxMessage + 10*bytesPerSecond + window)
		if n := s.read.Load(); n > most || n < most*9/10 {
			t.Errorf("%d bytes in 10 s, want %d", n, most)
		}
	})
}

// TestNamespacesAreReadAtARate: however many connections its pods have; others have their own, and nothing stays of those that are
// over.
func TestNamespacesAreReadAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, seconds = 100, 10
		in := newIntake()
		var flood []*sender
		for range connections {
			flood = append(flood, sends(t, in, "team-a", 0))
		}
		other := sends(t, in, "team-b", 0)
		for begun := time.Now(); time.Since(begun) < seconds*time.Second; time.Sleep(10 * time.Millisecond) {
			for _, s := range append(flood, other) {
				s.whole()
			}
		}
		sum := int64(0)
		for _, s := range flood {
			sum += s.read.Load()
		}
		if most := int64((seconds+1)*namespaceBytesPerSecond + connections*window); sum > most || sum < most*9/10 {
			t.Errorf("%d MiB of one namespace in %d s, want %d", sum>>20, seconds, most>>20)
		}
		if n, want := other.read.Load(), int64(maxMessage+seconds*bytesPerSecond); n < want*9/10 {
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

// stalling lets out so many bytes and no more.
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

// TestAHalfSentReportIsTold why its stream ends, and soon.
func TestAHalfSentReportIsTold(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[mine.Key] = 1
	token := h.allow(mine)
	h.server.intake.turnTime, h.server.intake.lateTime = time.Second, time.Minute // a busy machine may be late in telling it
	begun, over := time.Now(), make(chan struct{})
	defer close(over)
	a := h.dial(token, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		s := &stalling{Conn: c, over: over}
		s.left.Store(3 << 20)
		return s, err
	}))
	a.report = wire.ReportMessage(fullest())
	go a.say()
	err := <-a.ended
	if took := time.Since(begun); took > h.server.contactTimeout/2 || status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "was not sent whole within 1s") {
		t.Errorf("ended after %s with %v", took, err)
	}
}
