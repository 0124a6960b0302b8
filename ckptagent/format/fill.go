package format

import "slices"

// Fill is a slot that is being filled from storage while no generation runs.
type Fill struct {
	Copy
	Generation, Branch int64
	// began is the Book's generation when the fill began: after another one began, the fill is invalid.
	began int64
}

// Holds reports whether a step is sealed here as the given generation or an earlier one made it. A step that a later generation or another
// branch made is a different state with the same number.
func (b *Book) Holds(at Point, generation int64) bool {
	return slices.ContainsFunc(b.Slot, func(s Slot) bool {
		return s.State == SlotSealed && s.point() == at && s.Generation <= generation
	})
}

// BeginFill gives up sealed steps above a step, in number or branch, and that step itself if a later generation or another branch made it.
// Then it opens a fill in an empty slot, else in that of the oldest step that is not common. No client may run. The slot is pinned until
// CommitFill or AbortFill.
func (b *Book) BeginFill(at Point, generation int64, length uint64) (Fill, []Write, bool) {
	if at.Step <= 0 || length == 0 || length > b.Header.StateBytes {
		return Fill{}, nil, false
	}
	var ws []Write
	for i, s := range b.Slot {
		above := s.Step > at.Step || s.Branch > at.Branch || s.Step == at.Step && (s.Branch != at.Branch || s.Generation > generation)
		if s.State == SlotSealed && above {
			ws = append(ws, b.Drop(uint32(i))...)
		}
	}
	slot := b.fillSlot()
	if slot == NoSlot {
		return Fill{}, ws, false
	}
	b.Control.Grant++
	b.Slot[slot] = Slot{Grant: b.Control.Grant, Generation: generation, Branch: at.Branch}
	b.pins[slot]++
	ws = append(ws, b.slotWrite(slot))
	if slot == b.Control.Slot { // granted to a client that is gone
		b.Control.Slot = NoSlot
		ws = append(ws, b.publish())
	}
	return Fill{
		Copy:       Copy{Slot: slot, Grant: b.Control.Grant, Step: at.Step, Offset: DataOffset(slot, b.Header.StateBytes), Length: length},
		Generation: generation, Branch: at.Branch, began: b.Control.Generation,
	}, ws, true
}

func (b *Book) fillSlot() uint32 {
	best := NoSlot
	for i, s := range b.Slot {
		switch {
		case b.pins[i] > 0:
		case s.State != SlotSealed:
			return uint32(i)
		case s.Step != b.Control.CommonStep && (best == NoSlot || s.Step < b.Slot[best].Step):
			best = uint32(i)
		}
	}
	return best
}

// CommitFill ends the fill and seals the slot, whose bytes have checksum crc, unless a generation started meanwhile.
func (b *Book) CommitFill(h Fill, crc uint32, sealedAt int64) (ws []Write, ok bool) {
	b.pins[h.Slot]--
	if b.Control.Generation != h.began || b.Slot[h.Slot].Grant != h.Grant {
		return nil, false
	}
	return []Write{
		b.seal(h.Copy, Slot{Generation: h.Generation, Branch: h.Branch, Flags: SlotFromStorage | SlotUnauthenticated}, crc, sealedAt),
	}, true
}

// AbortFill ends a fill without a sealed step.
func (b *Book) AbortFill(h Fill) { b.pins[h.Slot]-- }
