//go:build linux

package arena

import (
	"io"

	"holdfast.dev/holdfast/ckptagent/format"
)

// Pinned is a sealed slot that is not reused until Release.
type Pinned struct {
	a    *Arena
	slot uint32
	// Seal is the slot's header when it was pinned.
	Seal format.Slot
}

// Pin pins the slot of a rank that holds step; busy: the rank holds the step, but another slot is pinned.
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

// Data returns a reader of the slot's data from its beginning; it is valid until Release.
func (p *Pinned) Data() io.Reader {
	return io.NewSectionReader(p.a.file, format.DataOffset(p.slot, p.a.book.Header.StateBytes), int64(p.Seal.Length))
}

// Checksum returns the checksum of the slot's data, computed as for a seal.
func (p *Pinned) Checksum() (uint32, error) {
	return p.a.checksum(format.DataOffset(p.slot, p.a.book.Header.StateBytes), p.Seal.Length, idleTimeout)
}

// Release unpins the slot.
func (p *Pinned) Release() {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	p.a.carryOut(p.a.book.Unpin(p.slot))
}
