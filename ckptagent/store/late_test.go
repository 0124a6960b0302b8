//go:build linux && !race

package store

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// turned calls on, with a number, for each operation that changes something.
type turned struct {
	FS
	n  int
	on func(n int, op func() error) error
}

func (l *turned) do(op func() error) error { l.n++; return l.on(l.n, op) }

func (l *turned) MkdirAll(dir string) error {
	return l.do(func() error { return l.FS.MkdirAll(dir) })
}

func (l *turned) Create(name string) (f File, err error) {
	err = l.do(func() error { f, err = l.FS.Create(name); return err })
	return turnedFile{f, l}, err
}

func (l *turned) Rename(from, to string) error {
	return l.do(func() error { return l.FS.Rename(from, to) })
}

func (l *turned) Remove(name string) error {
	return l.do(func() error { return l.FS.Remove(name) })
}

type turnedFile struct {
	File
	fs *turned
}

func (f turnedFile) WriteAt(b []byte, at int64) (n int, err error) {
	err = f.fs.do(func() error { n, err = f.File.WriteAt(b, at); return err })
	return n, err
}

// TestCallsOfTheDeadComeLate: a call that hangs in storage outlives the agent that made it. It takes effect at any moment while the next
// agent works, or after that. Steps recorded by then can be read, and the next removal removes what the call left.
func TestCallsOfTheDeadComeLate(t *testing.T) {
	whole := &turned{FS: newMemFS(rand.New(rand.NewPCG(0, 0)), 0), on: func(_ int, op func() error) error { return op() }}
	if _, err := history(newStore(whole, jobFolder, "a")); err != nil {
		t.Fatal(err)
	}
	outlived := 0
	for hung := 1; hung <= whole.n; hung++ {
		for moment := 1; moment <= whole.n; moment += 5 {
			m := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
			var late func() error
			dead := &turned{FS: m, on: func(n int, op func() error) error {
				switch {
				case n < hung:
					return op()
				case n == hung:
					late = op
				}
				return errCrash
			}}
			if _, err := history(newStore(dead, jobFolder, "a")); err == nil {
				t.Fatalf("operation %d does not end the writer", hung)
			}
			next := &turned{FS: m, on: func(n int, op func() error) error {
				if n == moment && late() == nil {
					outlived++
				}
				return op()
			}}
			s := newStore(next, jobFolder, "b")
			ack, err := history(s)
			if err != nil { // a folder that was just created was removed: agents try again
				ack, err = history(s)
			}
			if next.n < moment {
				_ = late()
			}
			if err == nil {
				err = checkRecorded(newStore(m, jobFolder, "c"), ack.manifests[len(ack.manifests)-2:])
			}
			if err != nil {
				t.Fatalf("operation %d of the dead took effect at %d of the next: %v\n%s", hung, moment, err, m)
			}
		}
	}
	t.Logf("%d operations, %d times one came late", whole.n, outlived)
	if outlived < whole.n {
		t.Error("few had an effect")
	}
}

// checkRecorded checks that recorded steps are complete, and that after their removal nothing older than them is left.
func checkRecorded(s *Store, recorded []protocol.Mark) error {
	if err := s.Prune(recorded...); err != nil {
		return err
	}
	for _, m := range recorded {
		if _, err := s.Manifest(m); err != nil {
			return fmt.Errorf("step %v is recorded: %w", m, err)
		}
		for rank := range uint32(2) {
			if err := get(s, m, rank); err != nil {
				return fmt.Errorf("step %v is recorded, the file of rank %d: %w", m, rank, err)
			}
		}
		if err := indexed(s, m, true); err != nil {
			return err
		}
	}
	return s.walk(func(dir, name string, _ format.FileKind, m protocol.Mark) error {
		if compare(m, recorded[0]) < 0 {
			return fmt.Errorf("%s/%s is older than all that is recorded", dir, name)
		}
		return nil
	})
}
