package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/credentials"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

// shaken counts handshakes.
type shaken struct {
	credentials.TransportCredentials
	n atomic.Int64
}

func (s *shaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	s.n.Add(1)
	return c, nil, nil
}

// caller is a connection with an address.
type caller struct {
	net.Conn
	from     string
	closed   atomic.Bool
	deadline time.Time
}

func (c *caller) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 4000} }
func (c *caller) Close() error                     { c.closed.Store(true); return nil }
func (c *caller) SetDeadline(t time.Time) error    { c.deadline = t; return nil }
func (c *caller) SetReadDeadline(time.Time) error  { return nil }
func (c *caller) SetWriteDeadline(time.Time) error { return nil }

// TestHandshakesAreLimited: the number of handshakes is limited per source, so that other sources are served, and in all.
func TestHandshakesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := &shaken{}
		h := limited(counts, newIntake())
		dial := func(from string) (shut bool) {
			c := &caller{from: from}
			_, _, err := h.ServerHandshake(c)
			if err == nil && (c.deadline.IsZero() || c.deadline.After(time.Now().Add(handshakeTime))) {
				t.Errorf("from %s: may be silent until %s", from, c.deadline)
			}
			if (err != nil) != c.closed.Load() {
				t.Errorf("from %s: %v, closed %t", from, err, c.closed.Load())
			}
			return err != nil
		}
		for range 1000 {
			dial("10.0.0.9")
		}
		if n := counts.n.Load(); n != SourceBurst {
			t.Errorf("one source had %d handshakes at once, want %d", n, SourceBurst)
		}
		if dial("10.0.0.1") {
			t.Error("another source is shut out")
		}
		began := time.Now()
		for i := range 2 * handshakesBurst {
			dial(fmt.Sprintf("10.1.%d.%d", i/250, i%250))
		}
		if least := handshakesBurst / handshakesPerSecond * time.Second; time.Since(began) < least {
			t.Errorf("%d handshakes of as many sources took %s, want %s", 2*handshakesBurst, time.Since(began), least)
		}
	})
}

// quietServer returns a server without agents.
func quietServer(t *testing.T, store Store, log logr.Logger) *Server {
	s, err := New(Options{Listen: ":0", TLS: &tls.Config{}, Callers: &house{}, Store: store, Elected: leading(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	s.ctx = t.Context()
	t.Cleanup(s.replacements.ShutDown)
	return s
}

// TestLastWordsAreBounded: if more agents report within an hour than are stored, the newest stay.
func TestLastWordsAreBounded(t *testing.T) {
	s := quietServer(t, newMemory(), logr.Discard())
	now := time.Now()
	for i := range contactMost + 1000 {
		s.noteContact(fmt.Sprint(i), now)
	}
	if n := s.contacts.Len(); n > contactMost {
		t.Errorf("%d are remembered", n)
	}
	if at, ok := s.LastContact(fmt.Sprint(contactMost + 999)); !ok || !at.Equal(now) {
		t.Errorf("the newest was heard at %s, %t", at, ok)
	}
	if _, ok := s.LastContact("0"); ok {
		t.Error("the oldest is remembered")
	}
}

// asked counts queries for missing gangs.
type asked struct {
	*memory
	n atomic.Int64
}

func (a *asked) Load(ctx context.Context, key Key) (int, elastic.Settings, elastic.Record, error) {
	a.n.Add(1)
	return a.memory.Load(ctx, key)
}

func (a *asked) Over(ctx context.Context, key Key) (bool, error) {
	a.n.Add(1)
	return a.memory.Over(ctx, key)
}

// TestMissingGangsAreAskedForSeldom: agents of missing gangs wait. Each gang is queried at once, and after that in turn with the others,
// however many agents wait.
func TestMissingGangsAreAskedForSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &asked{memory: newMemory()}
		s := quietServer(t, store, logr.Discard())
		const gangs = 100
		ended := make(chan error, gangs)
		for i := range gangs {
			go func() {
				_, err := s.gang(t.Context(), Key{Namespace: "team-a", Name: fmt.Sprint("missing-", i)})
				ended <- err
			}()
		}
		for range gangs {
			if err := <-ended; err == nil {
				t.Error("a gang that is not there was loaded")
			}
		}
		most := int64(2 * (gangs + pollsBurst + pollsPerSecond*waitForGang/time.Second))
		if n := store.n.Load(); n > most {
			t.Errorf("the store was asked %d times, %d at most", n, most)
		}
	})
}

// TestWhatANamespaceKeepsIsBounded: what agents report is bounded over all gangs of a namespace. Other namespaces have their own limit.
// Dropped gangs do not count.
func TestWhatANamespaceKeepsIsBounded(t *testing.T) {
	s := quietServer(t, newMemory(), logr.Discard())
	slot := elastic.Slot(0)
	say := func(g *gang, ranks, text int) error {
		slot++
		g.mu.Lock()
		defer g.mu.Unlock()
		r := protocol.Report{Ranks: ranks}
		for i := range ranks {
			r.Rank = append(r.Rank, protocol.Rank{Local: i, Exit: &protocol.Exit{Code: 1, Traceback: strings.Repeat("x", text)}})
		}
		if err := g.keep(slot, &r); err != nil {
			return err
		}
		if again := g.keep(slot, &r); again != nil {
			t.Fatalf("the same report again: %v", again)
		}
		if e := r.Rank[0].Exit; e.Code != 1 || e.Traceback == "" && s.kept.of[g.key.Namespace].all < keptTexts/2 {
			t.Fatalf("kept is %+v, with %d bytes of the namespace", e, s.kept.of[g.key.Namespace].all)
		}
		return nil
	}
	var gangs []*gang
	taken := 0
	for ; ; taken++ {
		if taken%100 == 0 {
			gangs = append(gangs, newGang(s, Key{Namespace: "team-a", Name: fmt.Sprint(len(gangs))}))
			gangs[len(gangs)-1].state = elastic.New(v1alpha1.MaxMembers, 0, elastic.Record{})
		}
		if err := say(gangs[len(gangs)-1], protocol.MaxRanks, protocol.MaxText); err != nil {
			if !strings.Contains(err.Error(), "reports of namespace team-a use 128 MiB") || !strings.Contains(err.Error(), "run fewer pods there at once") {
				t.Error(err)
			}
			break
		}
		if n := s.kept.of["team-a"].all; n > keptOfNamespace {
			t.Fatalf("%d pods keep %d bytes", taken, n)
		}
	}
	if least := 100; taken < least {
		t.Errorf("%d pods are served, want %d", taken, least)
	}
	other := newGang(s, Key{Namespace: "team-b", Name: "train"})
	other.state = elastic.New(v1alpha1.MaxMembers, 0, elastic.Record{})
	if err := say(other, 8, 100); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	other.cancel()
	for _, g := range gangs {
		g.cancel()
	}
	for range 1000 { // dropped gangs are subtracted by another goroutine
		s.kept.mu.Lock()
		left := len(s.kept.of)
		s.kept.mu.Unlock()
		if left == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%v is kept of gangs that are forgotten", s.kept.of)
}

// TestWhatStaysOfReportsIsCounted: exits stay in memory until the next generation, and a late report replaces none of them. So neither
// frees the bytes of earlier exits. The test compares the count with the memory of its process.
func TestWhatStaysOfReportsIsCounted(t *testing.T) {
	const pods = 40
	exits, notes := protocol.Report{Sequence: 2, Ranks: protocol.MaxRanks}, protocol.Report{Sequence: 2}
	for name, c := range map[string]struct{ first, then protocol.Report }{
		"exits, then nothing":            {exits, protocol.Report{Sequence: 3, Ranks: protocol.MaxRanks}},
		"exits, then other ranks":        {exits, protocol.Report{Sequence: 3, Ranks: 1}},
		"notes, before which is nothing": {notes, protocol.Report{Sequence: 1}},
	} {
		s := quietServer(t, newMemory(), logr.Discard())
		g := newGang(s, Key{Namespace: "team-a", Name: "train"})
		g.state = elastic.New(pods, 0, elastic.Record{Generation: 1, Phase: elastic.Running})
		say := func(slot int, r protocol.Report) {
			st := &stream{peer: Caller{Slot: elastic.Slot(slot), Pod: elastic.Pod{UID: fmt.Sprint("uid-", slot)}}, next: make(chan message, 1)}
			g.streams[st], g.current[st.peer.Slot] = true, st
			r.Incarnation, r.Generation, r.State = 1, 1, protocol.StateFailed
			if err := g.reported(st, r); err != nil {
				t.Fatalf("%s: pod %d: %v", name, slot, err)
			}
		}
		before := heap()
		for slot := range pods {
			r := c.first
			for i := range r.Ranks {
				r.Rank = append(r.Rank, protocol.Rank{Local: i, Exit: &protocol.Exit{Code: 1, Traceback: strings.Repeat("x", protocol.MaxText)}})
			}
			for range maxNotes {
				r.Notes = append(r.Notes, strings.Repeat("x", protocol.MaxText))
			}
			say(slot, r)
			say(slot, c.then)
		}
		took := heap() - before
		if most := int64(keptTexts + pods<<20); took > most { // without texts, reports of 1,024 ranks take less than 1 MiB
			t.Errorf("%s: %d MiB are kept, want %d at most", name, took>>20, most>>20)
		}
		if counted := s.kept.of["team-a"].all; counted < took/2 {
			t.Errorf("%s: %d MiB are kept, %d counted", name, took>>20, counted>>20)
		}
		g.cancel()
		runtime.KeepAlive(g)
	}
}

// heap returns the number of bytes of the heap in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestRefusedListsOfModulesAreToldSeldom: refused lists are logged rarely, whether one stream sends them or several in turn.
func TestRefusedListsOfModulesAreToldSeldom(t *testing.T) {
	for _, streams := range []int{1, 500} {
		lines := 0
		g := newGang(quietServer(t, newMemory(), funcr.New(func(string, string) { lines++ }, funcr.Options{})), Key{Namespace: "team-a", Name: "train"})
		defer g.cancel()
		var st *stream
		for i := range 1000 {
			if i%(1000/streams) == 0 {
				st, g.sender = &stream{}, nil
			}
			g.recordModules(st, 2*i+1, nil)
			if g.recordModules(st, 2*i+2, []string{"no name"}); g.modules != nil {
				t.Fatal("the list is taken")
			}
		}
		if lines != 10 {
			t.Errorf("%d streams: %d lines for 1000 lists, want 10", streams, lines)
		}
	}
}

// TestWhatFailsForEverIsToldSeldom: an error that repeats is logged whenever the number of tries has doubled.
func TestWhatFailsForEverIsToldSeldom(t *testing.T) {
	lines := 0
	s := quietServer(t, newMemory(), funcr.New(func(string, string) { lines++ }, funcr.Options{}))
	g := newGang(s, Key{Namespace: "team-a", Name: "train"})
	g.state = elastic.New(1, 0, elastic.Record{})
	defer g.cancel()
	for i := range 1000 {
		if g.givenUp("replacing a pod", i+1, errors.New("a webhook refuses it")) {
			t.Fatal("it is given up")
		}
	}
	if lines != 10 {
		t.Errorf("%d lines for 1000 tries, want 10", lines)
	}
}
