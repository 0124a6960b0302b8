//go:build linux

package watch

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/internal/protocol"
)

// oneIsSilent is what NCCL's RAS answers about three ranks (package ras has whole answers).
const oneIsSilent = `{"communicators": [{"size": 3, "ranks": [{"rank": 0, "host": "127.0.0.1", "pid": 77}, {"rank": 1, "pid": 88}],
	"missing_ranks": [{"rank": 2, "status": {"unresponsive": true}}]}]}`

// rasThread answers as NCCL's RAS, and counts who asks. An empty answer never comes.
func rasThread(t *testing.T, answer string) (address string, asked *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	asked = &atomic.Int32{}
	talk := func(c net.Conn) {
		defer c.Close()
		asked.Add(1)
		from := bufio.NewReader(c)
		for _, text := range []string{"SERVER PROTOCOL 2\n", "OK\n", "OK\n", answer} {
			if _, err := from.ReadString('\n'); err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
		}
		_, _ = io.Copy(io.Discard, c)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go talk(c)
		}
	}()
	return l.Addr().String(), asked
}

// TestFaults: only the rank that is to ask, and that uses NCCL, asks NCCL's RAS. A look without an answer has everything else, in time.
func TestFaults(t *testing.T) {
	silent := []protocol.RankFault{{Rank: 2, Fault: protocol.FaultSilent}}
	for name, c := range map[string]struct {
		groups, answer string
		elsewhere      bool
		world          int
		asks           int32
		want           []protocol.RankFault
	}{
		"NCCL":                      {groups: "0\tcpu:gloo,cuda:nccl\t0-2\n", answer: oneIsSilent, world: 3, asks: 1, want: silent},
		"its successor":             {groups: "0\tcuda:nccl2\t0-2\n", answer: oneIsSilent, world: 3, asks: 1, want: silent},
		"it does not answer":        {groups: "0\tnccl\t0-2\n", world: 3, asks: 1},
		"an answer of another gang": {groups: "0\tnccl\t0-1\n", answer: oneIsSilent, world: 2, asks: 1},
		"its host is elsewhere":     {groups: "0\tnccl\t0-2\n", answer: strings.Replace(oneIsSilent, "127.0.0.1", "198.51.100.7", 1), world: 3, asks: 1},
		"gloo alone":                {groups: "0\tgloo\t0-2\n", answer: oneIsSilent, world: 3},
		"no process group":          {answer: oneIsSilent, world: 3},
		"ranks without numbers":     {groups: "0\tnccl\t0-2\n", answer: oneIsSilent},
		"another rank asks":         {groups: "0\tnccl\t0-2\n", answer: oneIsSilent, world: 3, elsewhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ranks := []Rank{{Local: 0}, {Local: 1}}
			for i := range ranks {
				r := &ranks[i]
				r.Process, r.Files = run(t, "sleep", "600"), filepath.Join(t.TempDir(), "looks")
				r.Page = page.Page{PID: r.Process.PID, Start: r.Process.Start}
				if err := os.WriteFile(r.Files+".groups", []byte(c.groups), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			address, asked := rasThread(t, strings.ReplaceAll(c.answer, `77`, strconv.Itoa(ranks[0].Process.PID)))
			if !c.elsewhere {
				ranks[0].RAS = address
			}
			begun := time.Now()
			looks := New().Look(ranks, c.world)
			if took := time.Since(begun); took > Limit+time.Second/2 {
				t.Errorf("it took %s", took)
			}
			if len(looks) != 2 || !slices.Equal(looks[0].Faults, c.want) || looks[1].Faults != nil || looks[0].Processes != 1 {
				t.Errorf("%+v", looks)
			}
			if asked.Load() != c.asks {
				t.Errorf("asked %d times", asked.Load())
			}
		})
	}
}
