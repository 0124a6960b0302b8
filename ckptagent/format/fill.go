package format

import "slices"

// Fill is a slot that is being filled from outside while no generation runs.
type Fill struct {
	Copy
	Generation, Branch int64
	// began is the generation that the book was at: once another one began the hole is of no use.
	began int64
}

// Holds reports whether a step lies sealed here as generation, or one before it, left it. One that a later
// generation made anew, or that is of another branch, is another state of the same number.
func (b *Book) Holds(at Point, generation int64) bool {
	return slices.ContainsFunc(b.Slot, func(s Slot) bool {
		return s.State == SlotSealed && s.point() == at && s.Generation <= generation
	})
}

// BeginFill gives up sealed steps above a step, in number or branch, and that step itself if a later generation made it or
// another branch did, and opens a hole for it: in a slot that holds nothing, else the oldest that is not common. No client may
// run. The hole is pinned until CommitFill or AbortFill.
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
	if slot == b.Control.Slot { // of a client that is gone
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

// CommitFill seals a filled slot whose bytes have checksum crc, unless a generation started meanwhile, and ends the
// fill.
func (b *Book) CommitFill(h Fill, crc uint32, sealedAt int64) (ws []Write, ok bool) {
	b.pins[h.Slot]--
	if b.Control.Generation != h.began || b.Slot[h.Slot].Grant != h.Grant {
		return nil, false
	}
	return []Write{
		b.seal(h.Copy, Slot{Generation: h.Generation, Branch: h.Branch, Flags: SlotFromStorage | SlotUnauthenticated}, crc, sealedAt),
	}, true
}

// AbortFill ends a fill whose slot was not filled.
func (b *Book) AbortFill(h Fill) { b.pins[h.Slot]-- }
