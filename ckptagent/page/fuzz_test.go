//go:build linux

package page

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzPage: whatever the processes of a rank write into its page, no number that is read is below zero, each name is whole, and there are
// no more names than fit into a page. A second read of the same bytes finds nothing new.
func FuzzPage(f *testing.F) {
	head := func(numbers ...uint64) string {
		out := magic
		for _, n := range numbers {
			for i := range 8 {
				out += string(rune(byte(n>>(8*i)) & 0x7f))
			}
		}
		return out
	}
	f.Add([]byte(head(3, 77, 12, 501, 8, 1)), []byte("os\nsys\nx"), []byte("x\n"))
	f.Add([]byte(magic+strings.Repeat("\xff", 48)), []byte("a\n\x00b\nc\n"), []byte(""))
	f.Add([]byte(head(3, 77)+strings.Repeat("\x00", phasesAt-24)+record(1, 1<<62, 3*time.Hour, 3, "ab\xff")), []byte(""), []byte(""))
	f.Add([]byte("HFPAGE00"), []byte("\n\n"), []byte("\n"))
	f.Fuzz(func(t *testing.T, head, names, more []byte) {
		if len(head) > namesAt || len(names)+len(more) > Bytes-namesAt {
			return
		}
		path := filepath.Join(t.TempDir(), "page")
		raw := make([]byte, Bytes)
		copy(raw, head)
		copy(raw[namesAt:], names)
		write := func() {
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write()
		follower := Follow(path)
		p := follower.Poll()
		if read, err := Read(path); err != nil || read != p {
			t.Fatalf("read %+v, %v; looked at %+v", read, err, p)
		}
		if p.Generation < 0 || p.PID < 0 || p.OptimizerSteps < 0 || p.ResumedAt < 0 || p.names > Bytes-namesAt {
			t.Fatalf("read: %+v", p)
		}
		if open := p.Phase.Open(); open != nil && (!open.Valid() || !utf8.ValidString(open.Name)) {
			t.Fatalf("read: %+v", open)
		}
		check(t, follower, append(slices.Clone(names), make([]byte, 1)...))
		before := slices.Clone(follower.Names)
		if follower.Poll(); !slices.Equal(before, follower.Names) {
			t.Fatalf("the same page, then %q, first %q", follower.Names, before)
		}
		copy(raw[namesAt+len(names):], more)
		write()
		follower.Poll()
		if len(follower.Names) < len(before) || !slices.Equal(follower.Names[:len(before)], before) {
			t.Fatalf("more was written after %q, and it is %q", before, follower.Names)
		}
	})
}

// check checks that the names are the lines that were written, in order, from the first one on.
func check(t *testing.T, f *Follower, names []byte) {
	t.Helper()
	if joined := strings.Join(f.Names, "\n") + "\n"; len(f.Names) > 0 && !strings.HasPrefix(string(names), joined) {
		t.Fatalf("%q holds no %q", names, f.Names)
	}
	for _, name := range f.Names {
		if name == "" || strings.ContainsAny(name, "\x00\n") {
			t.Fatalf("a name is %q", name)
		}
	}
}
