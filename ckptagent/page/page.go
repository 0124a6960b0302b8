//go:build linux

// Package page reads the page that a rank's site hook writes without the client: the number of finished optimizer
// steps, their start, and the imported modules. It promises that a page that is incomplete, damaged or missing yields
// fewer facts, never wrong ones.
package page

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// The layout, which docs/architecture.md describes. There is one writer, and all numbers are levels that only rise, so
// that what was written in between is seen at the next look.
const (
	Bytes     = 1 << 20
	magic     = "HFPAGE01"
	headBytes = 56
	namesAt   = 4096
)

// Page is what was read.
type Page struct {
	Generation int64
	PID        int
	// Hook: the site hook ran in a Python process of the rank.
	Hook           bool
	OptimizerSteps int64
	// ResumedAt is how many optimizer steps the restored state held, where ResumeKnown.
	ResumedAt   int64
	ResumeKnown bool
	names       uint64 // bytes
}

// Prepare makes the page of a rank that is about to be started, in place of the one before. All of it is written: a rank
// that met a full disk in a hole of its mapping would be killed.
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
		err = f.Chmod(0o666) // whoever the script runs as
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
	}
	return err
}

// Read reads a page; the zero Page where no site hook has entered it yet.
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
		Generation: number(1), PID: int(number(2)), OptimizerSteps: number(3), names: min(uint64(number(5)), Bytes-namesAt),
		Hook: number(6)&1 != 0,
	}
	if resumed := number(4); resumed > 0 {
		p.ResumedAt, p.ResumeKnown = resumed-1, true
	}
	return p, true, nil
}

// Follower reads a page again and again, and the names that came since.
type Follower struct {
	path string
	of   Page // whose names were read
	at   uint64
	// Names are the modules that the process has imported, in order.
	Names []string
}

// Follow returns a Follower of the page at a path.
func Follow(path string) *Follower { return &Follower{path: path} }

// Poll reads the page; the zero Page where there is none.
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

// more reads names up to an end. Where the number is seen before the bytes, which a machine may show in another order
// than they were written in, there are zeros among them: these are read at the next look.
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
