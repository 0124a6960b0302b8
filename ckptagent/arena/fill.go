//go:build linux

package arena

import (
	"errors"
	"fmt"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
)

// Holds says whether a rank holds step as generation or one before it left it.
func (s *Set) Holds(local int, step, generation uint64) bool {
	if local < 0 || local >= len(s.arenas) {
		return false
	}
	a := s.arenas[local]
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.book.Holds(step, generation)
}

// errNoRoom says that no slot may be filled.
var errNoRoom = errors.New("no slot is free for it")

// Hole is a slot that is filled from outside; it takes Write until it is full, then Seal or Leave.
type Hole struct {
	a       *Arena
	h       format.Hole
	written uint64
}

// Bring opens a hole for a step of length bytes in the arena of a rank. No client may run.
func (s *Set) Bring(local int, step, generation, length uint64) (*Hole, error) {
	if local < 0 || local >= len(s.arenas) {
		return nil, fmt.Errorf("there is no arena of local rank %d", local)
	}
	a := s.arenas[local]
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ws, ok := a.book.Bring(step, generation, length)
	a.carryOut(ws)
	if !ok {
		return nil, errNoRoom
	}
	return &Hole{a: a, h: h}, nil
}

// Write takes the next bytes of the step.
func (h *Hole) Write(b []byte) (int, error) {
	if h.written+uint64(len(b)) > h.h.Length {
		return 0, fmt.Errorf("writing %d bytes beyond a step of %d", len(b), h.h.Length)
	}
	n, err := h.a.file.WriteAt(b, h.h.Offset+int64(h.written))
	h.written += uint64(n)
	return n, err
}

// Seal vouches for what was written and ends the hole; false if a generation began meanwhile.
func (h *Hole) Seal(crc uint32, now time.Time) bool {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	ws, ok := h.a.book.Brought(h.h, crc, now.UnixNano())
	h.a.carryOut(ws)
	return ok
}

// Leave ends the hole without a step in it.
func (h *Hole) Leave() {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	h.a.book.Leave(h.h)
}
