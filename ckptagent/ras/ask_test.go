package ras

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// serve listens as a RAS thread does. Each connection is handled by that function; the server returns its address.
func serve(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return l.Addr().String()
}

// nccl answers the commands as rasClientEventLoop does, until it is asked for the status.
func nccl(c net.Conn, json bool, status func(net.Conn)) {
	from := bufio.NewReader(c)
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return
		}
		switch line = strings.ToLower(strings.TrimSpace(line)); {
		case strings.HasPrefix(line, "client protocol "):
			_, _ = io.WriteString(c, "SERVER PROTOCOL 2\n")
		case line == "set format json" && json, line == "timeout 1":
			_, _ = io.WriteString(c, "OK\n")
		case line == "verbose status":
			status(c)
			return
		default:
			_, _ = io.WriteString(c, "ERROR: Unknown command "+line+"\n")
		}
	}
}

func ask(t *testing.T, limit time.Duration, address string) ([]protocol.RankFault, time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	begun := time.Now()
	got, err := Ask(ctx, address, 16, own)
	return got, time.Since(begun), err
}

// TestAsk: the answer arrives in pieces, and is read before the server closes the connection.
func TestAsk(t *testing.T) {
	text := faulty("2.28.9")
	address := serve(t, func(c net.Conn) {
		nccl(c, true, func(c net.Conn) {
			for len(text) > 0 {
				n := min(len(text), 1000)
				_, _ = io.WriteString(c, text[:n])
				text = text[n:]
				time.Sleep(time.Millisecond)
			}
			_, _ = io.Copy(io.Discard, c)
		})
	})
	if got, _, err := ask(t, 10*time.Second, address); err != nil || len(got) != 6 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestAskAnother: a listener that does not answer is a process that is stopped; the next one is another.
func TestAskAnother(t *testing.T) {
	var n atomic.Int32
	address := serve(t, func(c net.Conn) {
		if n.Add(1) < attempts {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		nccl(c, true, func(c net.Conn) { _, _ = io.WriteString(c, faulty("2.30.7")) })
	})
	if got, _, err := ask(t, 10*time.Second, address); err != nil || len(got) != 6 || n.Load() != attempts {
		t.Errorf("after %d connections: %v, %v", n.Load(), got, err)
	}
}

// TestWhatListensInItsPlace: no listener, an older NCCL, and processes that hang, never end or write anything else. Asking ends in time.
func TestWhatListensInItsPlace(t *testing.T) {
	forever := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, text); err != nil {
					return
				}
			}
		}
	}
	status := func(status func(net.Conn)) func(net.Conn) {
		return func(c net.Conn) { nccl(c, true, status) }
	}
	asked := false
	none, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	none.Close()
	const limit = time.Second
	for name, address := range map[string]string{
		"nothing":      none.Addr().String(),
		"no address":   "localhost",
		"hangs":        serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }),
		"closes":       serve(t, func(net.Conn) {}),
		"HTTP":         serve(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }),
		"a long line":  serve(t, forever("SERVER PROTOCOL ")),
		"older":        serve(t, func(c net.Conn) { nccl(c, false, func(net.Conn) { asked = true }) }),
		"no status":    serve(t, status(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })),
		"half":         serve(t, status(func(c net.Conn) { _, _ = io.WriteString(c, faulty("2.30.7")[:900]) })),
		"half, hangs":  serve(t, status(func(c net.Conn) { _, _ = io.WriteString(c, faulty("2.30.7")[:900]); _, _ = io.Copy(io.Discard, c) })),
		"endless":      serve(t, status(func(c net.Conn) { _, _ = io.WriteString(c, `{"a": [`); forever("1, ")(c) })),
		"endless text": serve(t, status(forever(`"x`))),
		"blanks":       serve(t, status(forever("         "))),
		"garbage":      serve(t, status(forever("\x00\xff{]"))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, took, err := ask(t, limit, address)
			if err == nil || got != nil || took > 10*limit { // a busy machine runs a reader late
				t.Errorf("%v, %v after %s", got, err, took)
			}
		})
	}
	t.Cleanup(func() {
		if asked {
			t.Error("a server that cannot answer in JSON was asked for its status")
		}
	})
}

// TestOnlyGangsOfSomeSizeAreAsked: the work of a RAS thread grows with the square of the answer.
func TestOnlyGangsOfSomeSizeAreAsked(t *testing.T) {
	address := serve(t, func(net.Conn) { t.Error("it was asked") })
	for _, world := range []int{0, MostRanks + 1} {
		if got, err := Ask(t.Context(), address, world, own); err == nil || got != nil {
			t.Errorf("%d ranks: %v, %v", world, got, err)
		}
	}
}
