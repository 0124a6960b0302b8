//go:build linux

package page

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/protocol"
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

// record is what the site hook writes for a phase.
func record(number uint64, until, of time.Duration, length int, name string) string {
	var b []byte
	for _, v := range []uint64{number, uint64(until), uint64(of), uint64(length)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(append(b, name...), make([]byte, phaseBytes-8-len(b)-len(name))...)
	return string(binary.LittleEndian.AppendUint64(b, uint64(crc32.ChecksumIEEE(b))))
}

func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// TestPhases: the newest whole record counts. What is not one, or is no phase that a client can open, is none.
func TestPhases(t *testing.T) {
	path := prepared(t)
	r := enter(t, path, 3, 77)
	now := monotonic(t)
	name := func() string {
		t.Helper()
		p, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if open := p.Phase.Open(); open != nil {
			return open.Name
		}
		return ""
	}
	outer, inner := record(1, now+time.Hour, 2*time.Hour, 10, "evaluation"), record(2, now+time.Minute, time.Minute, 6, "upload")
	for _, c := range []struct{ what, first, second, want string }{
		{"nothing", "", "", ""},
		{"one", "", outer, "evaluation"},
		{"the newer", inner, outer, "upload"},
		{"the newer at the other place", outer, inner, "upload"},
		{"torn", inner[:20] + "xx" + inner[22:], outer, "evaluation"},
		{"half of another", inner[:60] + outer[60:], outer, "evaluation"},
		{"both torn", inner[:60], outer[:60], ""},
		{"closed", record(2, 0, 0, 0, ""), outer, ""},
		{"run out", record(2, now, time.Minute, 6, "upload"), outer, ""},
		{"no lease", record(2, now+time.Hour, 0, 6, "upload"), outer, ""},
		{"a lease below zero", record(2, now+time.Hour, -1, 6, "upload"), outer, ""},
		{"no text", record(2, now+time.Hour, time.Hour, 2, "\xff\xff"), outer, ""},
		{"a longer name than there is room for", record(2, now+time.Hour, time.Hour, 1<<40, strings.Repeat("x", 80)), outer, strings.Repeat("x", 64)},
		{"number 0", record(0, now+time.Hour, time.Hour, 6, "upload"), "", ""},
	} {
		pad := func(s string) string { return s + strings.Repeat("\x00", phaseBytes-len(s)) }
		if r.bytes(phasesAt, pad(c.first)+pad(c.second)); name() != c.want {
			t.Errorf("%s: the phase is %q, want %q", c.what, name(), c.want)
		}
	}
	r.bytes(phasesAt, record(9, now+1000*time.Hour, 2000*time.Hour, 1, "x"))
	p, _ := Read(path)
	if open := p.Phase.Open(); open == nil || open.Left != protocol.MaxPhase || open.Of != protocol.MaxPhase {
		t.Errorf("a lease that no client can open is %+v", open)
	}
	r.bytes(phasesAt, inner)
	p, _ = Read(path)
	if open := p.Phase.Open(); open == nil || open.Of != time.Minute || open.Left > time.Minute || open.Left < 50*time.Second {
		t.Errorf("a minute is %+v", open)
	}
}

// TestPhaseOfTheClient: a phase of the Python client is read, with its lease by the same clock.
func TestPhaseOfTheClient(t *testing.T) {
	path := prepared(t)
	script := `
import sys, _holdfast_page
page = _holdfast_page.enter(sys.argv[1])
import holdfast
ck = holdfast.attach()
ck.phase("évaluation", up_to=1200)
with ck.phase("inner", up_to=60):
    pass
`
	c := exec.Command("python3", "-c", script, path)
	c.Env = append(os.Environ(), "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p, err := Read(path)
	if open := p.Phase.Open(); err != nil || open == nil || open.Name != "évaluation" || open.Of != 20*time.Minute || open.Left < 19*time.Minute {
		t.Fatalf("the page is %+v, its phase %+v: %v", p, open, err)
	}
}
