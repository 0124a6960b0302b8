//go:build linux

package proc

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fed returns a file that holds text and then ends.
func fed(t *testing.T, text []byte) *os.File {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	go func() {
		_, _ = write.Write(text)
		write.Close()
	}()
	return read
}

// FuzzStandbyLines: of the output of a source or a standby only complete lines with a JSON object count. Any other line ends the
// connection.
func FuzzStandbyLines(f *testing.F) {
	f.Add([]byte(`{"half":true}` + "\n" + `{"warm":true,"alone":"","imported":3,"memory":1}` + "\n"))
	f.Add([]byte(`{"ready":true,"pid":-1,"learned":1}` + "\nnonsense\n" + `{"warm":true}`))
	f.Add([]byte("[]\n"))
	f.Add([]byte(`{"memory":-1}` + "\n"))
	f.Add([]byte(strings.Repeat("x", maxPublished+1) + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all := strings.SplitAfter(string(text), "\n")
		heard := 0
		ok := lines(fed(t, text), func(warmLine) {
			if !json.Valid([]byte(all[heard])) || len(all[heard]) > maxPublished {
				t.Fatalf("heard: %q", all[heard])
			}
			heard++
		})
		if heard > strings.Count(string(text), "\n") || !ok && heard == len(all)-1 && all[heard] == "" {
			t.Fatalf("%d heard, %v, of %q", heard, ok, text)
		}
		ranks := 0
		lines(fed(t, text), func(readyLine) { ranks++ })
		if ranks > strings.Count(string(text), "\n") {
			t.Fatalf("%d standbys in %q", ranks, text)
		}
	})
}

// FuzzHello: a connection to the launchers' socket is accepted only with three descriptors and a complete greeting. Any other connection is
// refused, and no descriptor stays open.
func FuzzHello(f *testing.F) {
	for _, h := range []hello{{ID: "0123456789abcdef", Argv: []string{"torchrun", "t.py"}, Dir: "/", Env: []string{"A=1", "=", "B"}, Limits: readLimits()}, {}} {
		body, err := json.Marshal(h)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint32(len(body)), body, 3)
	}
	f.Add(^uint32(0), []byte("{}"), 3)
	f.Add(uint32(2), []byte("{}"), 0)
	f.Add(uint32(2), []byte("[]"), 2)
	f.Fuzz(func(t *testing.T, size uint32, body []byte, descriptors int) {
		if descriptors < 0 || descriptors > 3 {
			return
		}
		before := opened(t) + 1 // and the descriptor of the null device
		ours, theirs := connected(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			var rights []byte
			if fds := []int{int(null.Fd()), int(null.Fd()), int(null.Fd())}[:descriptors]; descriptors > 0 {
				rights = unix.UnixRights(fds...)
			}
			_, _, _ = theirs.WriteMsgUnix(binary.BigEndian.AppendUint32(nil, size), rights, nil)
			_, _ = theirs.Write(body)
			theirs.Close()
		}()
		l, err := receive(ours)
		if err != nil {
			ours.Close()
			<-sent
			if left := opened(t) - before; left > 0 {
				t.Fatalf("%d descriptors of a launcher that is refused are left open: %v", left, err)
			}
			return
		}
		defer l.Close()
		if descriptors != 3 || int(size) > len(body) || !json.Valid(body[:size]) {
			t.Fatalf("%d descriptors and %q of %d bytes make a launch", descriptors, body, size)
		}
		for _, f := range l.Files {
			if f == nil {
				t.Fatal("a descriptor is missing")
			}
		}
		for name := range l.Env {
			if name == "" {
				t.Fatal("a variable without a name")
			}
		}
		_, _ = l.interpreter()
	})
}

// opened returns the number of descriptors of this process.
func opened(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func connected(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "launcher")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
	}
	t.Cleanup(func() { ends[0].Close() })
	return ends[0], ends[1]
}
