//go:build linux

package arena

import (
	"io"

	"holdfast.dev/holdfast/ckptagent/format"
)

// Pinned is a sealed slot that is not granted until Release.
type Pinned struct {
	a    *Arena
	slot uint32
	// Seal is the slot's header as it was pinned.
	Seal format.Slot
}

// Pin pins the slot of a rank that holds step; busy says that it holds it and another slot is pinned.
func (s *Set) Pin(local int, step int64) (p *Pinned, ok, busy bool) {
	if local < 0 || local >= len(s.arenas) {
		return nil, false, false
	}
	a := s.arenas[local]
	a.mu.Lock()
	defer a.mu.Unlock()
	slot, seal, ok, busy := a.book.Pin(step)
	return &Pinned{a: a, slot: slot, Seal: seal}, ok, busy
}

// Data reads what the slot holds, from its beginning; it may be read until Release.
func (p *Pinned) Data() io.Reader {
	return io.NewSectionReader(p.a.file, format.DataOffset(p.slot, p.a.book.Header.StateBytes), int64(p.Seal.Length))
}

// Release lets the slot be granted again.
func (p *Pinned) Release() {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	p.a.carryOut(p.a.book.Unpin(p.slot))
}
