//go:build linux

// Package page reads a rank's page: a file in which the site hook of the rank's Python process writes the number of
// finished optimizer steps, the step from which training resumed, the imported modules and the phase that the script has
// open. A page that is incomplete, damaged or missing yields fewer facts, never wrong ones.
package page

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/protocol"
)

// The layout, which docs/architecture.md describes. There is one writer, and all numbers only rise, so that a reader needs no intermediate
// value. Phases have two records, of which the writer fills the older one: a record that is torn is not read, and the other one counts.
const (
	Bytes      = 1 << 20
	magic      = "HFPAGE01"
	phasesAt   = 128
	phaseBytes = 128
	headBytes  = phasesAt + 2*phaseBytes
	namesAt    = 4096
)

// Page is the content of a page.
type Page struct {
	Generation int64
	PID        int
	// Hook: the site hook ran in a Python process of the rank.
	Hook           bool
	OptimizerSteps int64
	// ResumedAt is the number of optimizer steps in the restored state, if ResumeKnown.
	ResumedAt   int64
	ResumeKnown bool
	// Signal makes the process, which started at the tick Start after boot, write its main thread's stack; 0: no signal does.
	Signal int
	Start  uint64
	// Phase is the phase that the script has open; of several, the one whose lease ends last.
	Phase Phase
	names uint64 // bytes
}

// Phase is a phase that a script has open; the zero value: none.
type Phase struct {
	Name string
	// Of is the length of its lease, until is when that runs out, in the time of the machine's monotonic clock.
	Of, until time.Duration
}

// Open returns the phase with what is left of its lease now; nil: it has run out, or there is none.
func (p Phase) Open() *protocol.Phase {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil
	}
	left := min(p.until-time.Duration(now.Nano()), p.Of).Round(time.Millisecond)
	if open := (&protocol.Phase{Name: p.Name, Left: left, Of: p.Of}); open.Valid() {
		return open
	}
	return nil
}

// newestPhase returns the phase of the newest of two records that is whole.
func newestPhase(records []byte) (p Phase) {
	newest := uint64(0)
	for ; len(records) >= phaseBytes; records = records[phaseBytes:] {
		body := records[:phaseBytes-8]
		number := func(i int) uint64 { return binary.LittleEndian.Uint64(records[8*i:]) }
		if number(0) <= newest || number(phaseBytes/8-1) != uint64(crc32.ChecksumIEEE(body)) {
			continue
		}
		newest, p = number(0), Phase{}
		name := body[32 : 32+min(number(3), protocol.MaxPhaseName)]
		if until, of := time.Duration(number(1)), time.Duration(number(2)); len(name) > 0 && utf8.Valid(name) && until > 0 && of > 0 {
			p = Phase{Name: string(name), Of: min(of, protocol.MaxPhase).Round(time.Millisecond), until: until}
		}
	}
	return p
}

// Prepare replaces the page of a rank that is about to start. Prepare writes all bytes: with a sparse file, a full disk would kill the rank
// at a write to its mapping.
func Prepare(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, Bytes))
	if err == nil {
		err = f.Chmod(0o666) // the script may run as any user
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
	}
	return err
}

// Read returns a page; the zero Page if no site hook has written to it yet.
func Read(path string) (Page, error) {
	f, err := os.Open(path)
	if err != nil {
		return Page{}, err
	}
	defer f.Close()
	p, _, err := read(f)
	return p, err
}

func read(f *os.File) (p Page, ok bool, err error) {
	var head [headBytes]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return Page{}, false, fmt.Errorf("reading a rank's page: %w", err)
	}
	number := func(i int) int64 { return max(int64(binary.LittleEndian.Uint64(head[8*i:])), 0) }
	if string(head[:8]) != magic {
		return Page{}, false, nil
	}
	p = Page{
		Generation:     number(1),
		PID:            int(number(2)),
		OptimizerSteps: number(3),
		names:          min(uint64(number(5)), Bytes-namesAt),
		Hook:           number(6)&1 != 0,
		Signal:         int(number(7)),
		Start:          uint64(number(8)),
		Phase:          newestPhase(head[phasesAt:]),
	}
	if resumed := number(4); resumed > 0 {
		p.ResumedAt, p.ResumeKnown = resumed-1, true
	}
	return p, true, nil
}

// Follower reads a page repeatedly, and accumulates the names.
type Follower struct {
	path string
	of   Page // whose names were read
	at   uint64
	// Names are the modules that the process has imported, in order.
	Names []string
}

// Follow returns a Follower of the page at a path.
func Follow(path string) *Follower { return &Follower{path: path} }

// Poll returns the page; the zero Page if there is none.
func (f *Follower) Poll() Page {
	file, err := os.Open(f.path)
	if err != nil {
		return Page{}
	}
	defer file.Close()
	p, ok, err := read(file)
	if err != nil || !ok {
		return Page{}
	}
	if p.Generation != f.of.Generation || p.PID != f.of.PID || p.names < f.at {
		f.at, f.Names = 0, nil
	}
	f.of = p
	if p.names > f.at {
		f.more(file, p.names)
	}
	return p
}

// more reads names up to an end. Some machines show the new end before the bytes; then these read as zeros, and more reads them again the
// next time.
func (f *Follower) more(file *os.File, end uint64) {
	buf := make([]byte, end-f.at)
	if _, err := file.ReadAt(buf, int64(namesAt+f.at)); err != nil {
		return
	}
	for line := range strings.Lines(string(buf)) {
		name, whole := strings.CutSuffix(line, "\n")
		if !whole || name == "" || strings.IndexByte(name, 0) >= 0 {
			return
		}
		f.Names = append(f.Names, name)
		f.at += uint64(len(line))
	}
}
