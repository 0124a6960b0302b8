//go:build linux

package arena

import (
	"errors"
	"fmt"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
)

// Holds reports whether a rank holds the step as generation or an earlier one sealed it.
func (s *Set) Holds(local int, at format.Point, generation int64) bool {
	if local < 0 || local >= len(s.arenas) {
		return false
	}
	a := s.arenas[local]
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.book.Holds(at, generation)
}

// errNoRoom is returned if no slot may be filled.
var errNoRoom = errors.New("no slot is free for it")

// Fill is a slot that is being filled from storage while no generation runs.
type Fill struct {
	a       *Arena
	h       format.Fill
	written uint64
}

// BeginFill starts to fill a slot in the arena of a rank with a step of length bytes from storage. No client may run.
func (s *Set) BeginFill(local int, at format.Point, generation int64, length uint64) (*Fill, error) {
	if local < 0 || local >= len(s.arenas) {
		return nil, fmt.Errorf("there is no arena of local rank %d", local)
	}
	a := s.arenas[local]
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ws, ok := a.book.BeginFill(at, generation, length)
	a.carryOut(ws)
	if !ok {
		return nil, errNoRoom
	}
	return &Fill{a: a, h: h}, nil
}

// Write writes the next bytes of the step.
func (h *Fill) Write(b []byte) (int, error) {
	if h.written+uint64(len(b)) > h.h.Length {
		return 0, fmt.Errorf("writing %d bytes beyond a step of %d", len(b), h.h.Length)
	}
	n, err := h.a.file.WriteAt(b, h.h.Offset+int64(h.written))
	h.written += uint64(n)
	return n, err
}

// Commit seals the slot and ends the fill; false if a generation started meanwhile.
func (h *Fill) Commit(crc uint32, now time.Time) bool {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	ws, ok := h.a.book.CommitFill(h.h, crc, now.UnixNano())
	h.a.carryOut(ws)
	return ok
}

// Abort ends the fill without a step in the slot.
func (h *Fill) Abort() {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	h.a.book.AbortFill(h.h)
}
