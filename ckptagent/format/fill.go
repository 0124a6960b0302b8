package format

// Hole is a slot that is being filled from outside while no generation runs.
type Hole struct {
	Copy
	Generation uint64
	// began is the generation that the book was at: once another one began the hole is of no use.
	began uint64
}

// Holds says whether step lies sealed here as generation, or one before it, left it. One that a later
// generation made anew is another state of the same number.
func (b *Book) Holds(step, generation uint64) bool {
	slot, ok := b.Find(step)
	return ok && b.Slot[slot].Generation <= generation
}

// Bring gives up sealed steps above step, and step itself if a later generation made it, and opens a hole
// for it: in a slot that holds nothing, else the oldest that is not common. No client may run. The hole is
// pinned until Brought or Leave.
func (b *Book) Bring(step, generation, length uint64) (Hole, []Write, bool) {
	if step == 0 || length == 0 || length > b.Header.StateBytes {
		return Hole{}, nil, false
	}
	var ws []Write
	for i, s := range b.Slot {
		if s.State == SlotSealed && (s.Step > step || s.Step == step && s.Generation > generation) {
			ws = append(ws, b.Drop(uint32(i))...)
		}
	}
	slot := b.hole()
	if slot == NoSlot {
		return Hole{}, ws, false
	}
	b.Control.Grant++
	b.Slot[slot] = Slot{Grant: b.Control.Grant, Generation: generation}
	b.pins[slot]++
	ws = append(ws, b.slotWrite(slot))
	if slot == b.Control.Slot { // of a client that is gone
		b.Control.Slot = NoSlot
		ws = append(ws, b.publish())
	}
	return Hole{
		Copy:       Copy{Slot: slot, Grant: b.Control.Grant, Step: step, Offset: DataOffset(slot, b.Header.StateBytes), Length: length},
		Generation: generation, began: b.Control.Generation,
	}, ws, true
}

func (b *Book) hole() uint32 {
	best := NoSlot
	for i, s := range b.Slot {
		switch {
		case b.pins[i] > 0:
		case s.State != SlotSealed:
			return uint32(i)
		case s.Step != b.Control.Common && (best == NoSlot || s.Step < b.Slot[best].Step):
			best = uint32(i)
		}
	}
	return best
}

// Brought vouches for a filled hole whose bytes have checksum crc, unless a generation began meanwhile, and
// lets it go.
func (b *Book) Brought(h Hole, crc uint32, sealedAt int64) (ws []Write, ok bool) {
	b.pins[h.Slot]--
	if b.Control.Generation != h.began || b.Slot[h.Slot].Grant != h.Grant {
		return nil, false
	}
	return []Write{b.seal(h.Copy, h.Generation, crc, sealedAt)}, true
}

// Leave lets a hole go that was not filled.
func (b *Book) Leave(h Hole) { b.pins[h.Slot]-- }
