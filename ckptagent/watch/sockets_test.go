//go:build linux

package watch

import (
	"fmt"
	"net"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/eventually"
)

// receives starts a process that receives from a connection for ever, and returns the other end once it does.
func receives(t *testing.T) (proc.Process, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const script = "import socket, sys\nc = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\nwhile c.recv(1 << 16): c.send(b'.')"
	p := run(t, "python3", "-c", script, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	send(t, c, 1)
	return p, c
}

// send sends bytes, and waits until the other side has taken all of them.
func send(t *testing.T, c net.Conn, n int) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	answer := make([]byte, 1)
	for ; n > 0; n -= min(n, 1<<10) {
		if _, err := c.Write(make([]byte, min(n, 1<<10))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(answer); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReceivedBytesAreIO: a process that receives a slow stream shows I/O. One with an idle connection, with keep-alive messages, or with
// the store of the ranks shows none.
func TestReceivedBytesAreIO(t *testing.T) {
	rank, c := receives(t)
	port := c.LocalAddr().(*net.TCPAddr).Port
	for _, e := range []struct {
		name  string
		bytes int
		quiet []int
		io    uint64
	}{
		{"idle", 0, nil, 0},
		{"keep-alive messages", 4 << 10, nil, 0},
		{"a slow stream", 96 << 10, nil, 96 << 10},
		{"the store of the ranks", 1 << 20, []int{port}, 0},
		{"another port is that of the store", 96 << 10, []int{port + 1}, 96 << 10},
	} {
		t.Run(e.name, func(t *testing.T) {
			w := New()
			look := func() uint64 {
				looks := w.Look([]Rank{{Process: rank, Quiet: e.quiet}}, 4)
				if len(looks) != 1 {
					t.Fatalf("%d looks", len(looks))
				}
				return looks[0].IO
			}
			before := look()
			send(t, c, e.bytes)
			time.Sleep(10 * time.Millisecond)
			if got := look() - before; got < e.io || got > e.io+8<<10 || e.io == 0 && got != 0 {
				t.Errorf("%d bytes, want %d", got, e.io)
			}
		})
	}
}

// TestReadingSocketsIsBounded: a look does not wait for a reading that has not ended, and what cannot be read is unknown.
func TestReadingSocketsIsBounded(t *testing.T) {
	w := New()
	w.passing <- struct{}{}
	if got := w.passed([][]int{{1}}, nil, 4); len(got) != 1 || got[0].bytes != nil {
		t.Errorf("%v", got)
	}
	<-w.passing
	if got := owners([][]int{{1 << 30}}, time.Now().Add(time.Minute)); len(got) != 0 {
		t.Errorf("a process that there is not holds %v", got)
	}
	eventually.Holds(t, "sockets of no process are read", func() (bool, any) {
		got := w.passed([][]int{{}}, nil, 4)
		return got[0].bytes != nil && len(got[0].bytes) == 0, got
	})
}

// TestFlows: what is too little within the window never counts, however long it goes on; a look that knows nothing changes nothing.
func TestFlows(t *testing.T) {
	const kib = 1 << 10
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		every  time.Duration
		world  int
		passed []uint64 // in KiB, until each look
		want   uint64
	}{
		"the first look":                {5 * time.Second, 4, []uint64{500}, 0},
		"8 KiB a second":                {5 * time.Second, 4, []uint64{500, 540, 580, 620}, 80},
		"4 KiB a second":                {5 * time.Second, 4, []uint64{0, 20, 40, 60, 80, 100, 120, 140}, 0},
		"63 KiB every 30 s":             {30 * time.Second, 4, []uint64{0, 63, 126, 189, 252}, 0},
		"64 KiB every 30 s":             {30 * time.Second, 4, []uint64{0, 64, 128}, 128},
		"an answer of RAS in 256 ranks": {5 * time.Second, 256, []uint64{0, 100, 200, 300, 400, 500, 600}, 0},
		"a stream in 256 ranks":         {30 * time.Second, 256, []uint64{0, 600}, 600},
	} {
		f := flows{}
		for i, kb := range c.passed {
			at := now.Add(time.Duration(i) * c.every)
			f.add(traffic{map[uint64]uint64{7: kb * kib}, at, unitOf(c.world)})
			f.add(traffic{})
		}
		if f.bytes != c.want*kib {
			t.Errorf("%s: %d KiB, want %d", name, f.bytes/kib, c.want)
		}
	}
	f := flows{marks: map[uint64]mark{}}
	f.add(traffic{map[uint64]uint64{1: 100 * kib, 2: 10 * kib}, now, unitOf(4)}) // two new connections
	f.add(traffic{map[uint64]uint64{2: 70 * kib}, now.Add(time.Second), unitOf(4)})
	if f.bytes != 170*kib || len(f.marks) != 1 {
		t.Errorf("new connections: %+v", f)
	}
}
