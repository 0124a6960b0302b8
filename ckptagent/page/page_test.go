//go:build linux

package page

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// rank writes a page as the site hook does.
type rank struct {
	t *testing.T
	f *os.File
}

func enter(t *testing.T, path string, generation, pid uint64) rank {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	r := rank{t, f}
	for i, v := range []uint64{generation, pid, 0, 0, 0, 1} {
		r.number(i+1, v)
	}
	r.bytes(0, magic)
	return r
}

func (r rank) number(i int, v uint64) {
	r.bytes(int64(8*i), string(binary.LittleEndian.AppendUint64(nil, v)))
}

func (r rank) bytes(at int64, b string) {
	if _, err := r.f.WriteAt([]byte(b), at); err != nil {
		r.t.Fatal(err)
	}
}

func prepared(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page-0")
	if err := Prepare(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNumbers(t *testing.T) {
	path := prepared(t)
	if p, err := Read(path); err != nil || p != (Page{}) {
		t.Fatalf("no client has entered: %+v, %v", p, err)
	}
	r := enter(t, path, 3, 77)
	if p, _ := Read(path); p != (Page{Generation: 3, PID: 77, Hook: true}) {
		t.Fatalf("entered: %+v", p)
	}
	r.number(3, 12)
	r.number(4, 1)
	if p, _ := Read(path); p != (Page{Generation: 3, PID: 77, Hook: true, OptimizerSteps: 12, ResumeKnown: true}) {
		t.Fatalf("resumed at 0: %+v", p)
	}
	r.number(4, 501)
	if p, _ := Read(path); p.ResumedAt != 500 {
		t.Fatalf("resumed at %d", p.ResumedAt)
	}
	r.number(8, 123456)
	r.number(7, 63)
	if p, _ := Read(path); p.Signal != 63 || p.Start != 123456 {
		t.Fatalf("the stack is written at signal %d by the process started at %d", p.Signal, p.Start)
	}
	if err := Prepare(path); err != nil {
		t.Fatal(err)
	}
	if p, err := Read(path); err != nil || p != (Page{}) {
		t.Fatalf("prepared again: %+v, %v", p, err)
	}
	r.number(3, 99)
	if p, _ := Read(path); p != (Page{}) {
		t.Fatalf("a process of the generation before writes into the page of the next one: %+v", p)
	}
}

func TestPagesAreWholeOnDisk(t *testing.T) {
	path := prepared(t)
	content, err := os.ReadFile(path)
	if st, _ := os.Stat(path); err != nil || len(content) != Bytes || st.Mode().Perm() != 0o666 {
		t.Fatalf("%d bytes, mode %v: %v", len(content), st.Mode(), err)
	}
}

func TestNamesAreFollowed(t *testing.T) {
	path := prepared(t)
	f := Follow(path)
	look := func(want ...string) {
		t.Helper()
		if f.Poll(); !slices.Equal(f.Names, want) {
			t.Fatalf("names %q, want %q", f.Names, want)
		}
	}
	look()
	r := enter(t, path, 1, 7)
	look()
	r.bytes(namesAt, "os\njson\n")
	look()
	r.number(5, 8)
	look("os", "json")
	r.number(5, 14) // seen before the bytes
	look("os", "json")
	r.bytes(namesAt+8, "tor")
	look("os", "json")
	r.bytes(namesAt+11, "ch\n")
	look("os", "json", "torch")
	r.number(5, 1<<40) // damaged
	look("os", "json", "torch")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if p := f.Poll(); p != (Page{}) {
		t.Fatalf("gone: %+v", p)
	}
	if err := Prepare(path); err != nil {
		t.Fatal(err)
	}
	r = enter(t, path, 2, 7)
	r.bytes(namesAt, "re\n")
	r.number(5, 3)
	look("re")
}

func TestDamagedPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page-0")
	if _, err := Read(path); err == nil {
		t.Fatal("a page that is not there was read")
	}
	if err := os.WriteFile(path, []byte("HFPAGE01"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Fatal("a page that was cut off was read")
	}
}
