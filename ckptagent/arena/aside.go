//go:build linux

package arena

import (
	"errors"
	"fmt"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
)

// Hold tells clients to stay in the save of a step at or above step; 0 lets them go. It is to be said again
// every second while it lasts.
func (s *Set) Hold(step uint64) {
	s.each(func(_ int, a *Arena) { a.carryOut(a.book.Hold(step)) })
}

// Pinned is a sealed slot that is not granted until Release.
type Pinned struct {
	a    *Arena
	slot uint32
	// Seal is the slot's header as it was pinned.
	Seal format.Slot
}

// Pin pins the slot of a rank that holds step; busy says that it holds it and another slot is pinned.
func (s *Set) Pin(local int, step uint64) (p *Pinned, ok, busy bool) {
	if local < 0 || local >= len(s.arenas) {
		return nil, false, false
	}
	a := s.arenas[local]
	a.mu.Lock()
	defer a.mu.Unlock()
	slot, seal, ok, busy := a.book.Pin(step)
	return &Pinned{a: a, slot: slot, Seal: seal}, ok, busy
}

// Data is what the slot holds; it may be read until Release.
func (p *Pinned) Data() []byte {
	at := uint64(format.DataOffset(p.slot, p.a.book.Header.StateBytes))
	return p.a.data[at : at+p.Seal.Length]
}

// Release lets the slot be granted again.
func (p *Pinned) Release() {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	p.a.carryOut(p.a.book.Unpin(p.slot))
}

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

// Len is the number of ranks.
func (s *Set) Len() int { return len(s.arenas) }

// Sealed lists the steps that each rank holds.
func (s *Set) Sealed() [][]uint64 {
	out := make([][]uint64, len(s.arenas))
	s.each(func(i int, a *Arena) { out[i] = a.book.Sealed() })
	return out
}
