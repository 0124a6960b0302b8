package coordinator

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// soonEnough is much longer than any stream or connection of these tests should last, and much shorter than for ever.
const soonEnough = time.Minute

// readsNothing connects as an agent that reads nothing and reports until its connection ends. Then it closes the channel.
func (h *house) readsNothing(token string) <-chan struct{} {
	h.t.Helper()
	conn, err := grpc.NewClient(
		h.addr,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: h.pool, ServerName: "coordinator"})),
		grpc.WithStaticStreamWindowSize(64<<10),
	)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+token))
	h.t.Cleanup(func() { cancel(); _ = conn.Close() })
	report := &coordinatorv1.Report{
		Protocol:    protocol.Version,
		Incarnation: 1,
		Ranks:       2,
		Address:     "10.0.0.1",
		Port:        4000,
		State:       coordinatorv1.State_STATE_IDLE,
		StateBytes:  1,
		Rank:        []*coordinatorv1.Rank{{}, {LocalRank: 1}},
	}
	for range 10 {
		rpc, err := coordinatorv1.NewCoordinatorClient(conn).Attach(ctx, grpc.WaitForReady(true))
		if err != nil {
			h.t.Fatal(err)
		}
		ended := make(chan struct{})
		h.t.Cleanup(func() { cancel(); <-ended })
		go func() {
			defer close(ended)
			for rpc.Send(report) == nil {
				time.Sleep(50 * time.Millisecond)
			}
		}()
		// the header comes with the first directive: then the coordinator, too, counts the next stream as the newer one
		header, err := rpc.Header()
		if err != nil {
			h.t.Fatal(err)
		}
		if header != nil { // otherwise a busy machine kept the agent from reporting
			return ended
		}
	}
	h.t.Fatal("its streams end before it is told anything")
	return nil
}

// knowsModules gives a gang as many modules as are stored: more than fits into a stream that is not read.
func (h *house) knowsModules(key Key) {
	h.t.Helper()
	eventually.Holds(h.t, "the gang is loaded", func() (bool, any) {
		h.server.mu.Lock()
		g := h.server.gangs[key]
		h.server.mu.Unlock()
		if g == nil {
			return false, "no gang"
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.modules = &moduleList{}
		for i := range maxModules {
			g.modules.names = append(g.modules.names, fmt.Sprintf("%0*d", protocol.MaxReport/maxModules, i))
		}
		return true, nil
	})
}

// tells sends every agent of a gang another directive with the modules.
func (h *house) tells(key Key, generation int64) {
	h.server.mu.Lock()
	g := h.server.gangs[key]
	h.server.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for st := range g.streams {
		st.offer(message{protocol.Directive{Order: protocol.OrderWait, Generation: generation}, g.modules})
	}
}

// TestWhoReadsNothingIsLetGo: an agent that reports and reads nothing delays no other agent of its gang. Its stream and its connection end.
func TestWhoReadsNothingIsLetGo(t *testing.T) {
	p := []Caller{pod("team-a", "train", 0, "a0"), pod("team-a", "train", 1, "a1")}
	h := &house{t: t, store: newMemory(), tokens: map[string]Caller{}, contactTimeout: 2 * time.Second}
	h.serve(leading())
	h.store.members[p[0].Key] = 2
	token := h.allow(p[0])
	a := h.dial(token)
	a.say()
	h.knowsModules(p[0].Key)
	ended, deadline := h.readsNothing(h.allow(p[1])), time.After(soonEnough)
	beat := time.NewTicker(100 * time.Millisecond)
	defer beat.Stop()
	told, read := int64(0), false
	for {
		select {
		case d := <-a.orders: // the directive after the unread ones arrives too
			read = read || d.Generation > 2
		case <-ended:
			if !read {
				t.Error("the agent that reads was told nothing meanwhile")
			}
			return
		case <-beat.C:
			told++
			h.tells(p[0].Key, told)
			a.say()
		case <-a.ended: // a busy machine kept the agent from reporting
			a = h.dial(token)
		case <-deadline:
			t.Fatal("an agent that reads nothing stays attached")
		}
	}
}

// TestUnreadStreamsLeaveNoConnections: a pod may open one stream after the other and read none. Unread messages are stored only for the
// last stream.
func TestUnreadStreamsLeaveNoConnections(t *testing.T) {
	mine := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[mine.Key] = 2
	a := h.dial(h.allow(mine))
	a.say()
	h.knowsModules(mine.Key)
	const streams = 4
	var before <-chan struct{}
	for i := range streams {
		now, deadline := h.readsNothing(h.allow(mine)), time.After(soonEnough)
		for before != nil {
			select {
			case <-before:
				before = nil
			case <-now:
				t.Fatalf("stream %d ended, which is the newest", i)
			case <-deadline:
				t.Fatalf("the connection of stream %d stays, though stream %d has taken over", i-1, i)
			}
		}
		before = now
	}
}

// TestAnAddressIsHeldAgainstThePods: a connection's address is compared with the pod's addresses as soon as the pod has any, not only when
// its token is old.
func TestAnAddressIsHeldAgainstThePods(t *testing.T) {
	p := []Caller{pod("team-a", "train", 0, "a0"), pod("team-a", "train", 1, "a1")}
	h := open(t, leading())
	h.store.members[p[0].Key] = 2
	var a []*agent
	began := time.Now()
	for i := range p {
		p[i].Addresses = nil
		a = append(a, h.dial(h.allow(p[i])))
	}
	a[1].report.Address = "10.9.9.9"
	for _, x := range a {
		x.say()
	}
	if d := a[0].await(coordinatorv1.Order_ORDER_RUN, 1); d.Run.Nodes != 2 {
		t.Fatalf("started is %v", d.Run)
	}
	for i := range p {
		p[i].Addresses = []string{"10.0.0.1"}
		h.allow(p[i])
	}
	beat, deadline := time.NewTicker(100*time.Millisecond), time.After(soonEnough)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			a[0].say()
			a[1].say()
		case err := <-a[0].ended:
			t.Fatalf("an agent at its pod's address is let go: %v", err)
		case err := <-a[1].ended:
			if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "address 10.9.9.9 is not one of pod train-1, which has [10.0.0.1]") {
				t.Errorf("it ended with %v", err)
			}
			if took := time.Since(began); took >= recheck {
				t.Errorf("that took %s, as where addresses are known", took)
			}
			return
		case <-deadline:
			t.Fatal("the address of another is believed")
		}
	}
}
