package format

// Pin prevents the slot that holds step from being granted until Unpin, so that it can be read during training. Pin returns the slot's
// header. Only one slot can be pinned: with two of three pinned, training could save no more; busy: another one is.
func (b *Book) Pin(step int64) (slot uint32, s Slot, ok, busy bool) {
	slot, ok = b.Find(step)
	if !ok {
		return 0, Slot{}, false, false
	}
	for i, n := range b.pins {
		if n > 0 && uint32(i) != slot {
			return 0, Slot{}, false, true
		}
	}
	b.pins[slot]++
	return slot, b.Slot[slot], true, false
}

// Unpin unpins a slot and opens a grant if none is open.
func (b *Book) Unpin(slot uint32) []Write {
	b.pins[slot]--
	ws := b.grant()
	if len(ws) == 0 {
		return nil
	}
	return append(ws, b.publish())
}

// PinCopy pins the slot of a complete copy that is being sealed, and returns its header as Seal will write it, without checksum and time.
// With two slots it does not: if other ranks skip that step, ranks must be able to reuse its slot.
func (b *Book) PinCopy(c Copy) (s Slot, ok bool) {
	if c.Slot != b.Control.Slot || c.Grant != b.Control.Grant || len(b.Slot) < Slots {
		return Slot{}, false
	}
	for _, n := range b.pins {
		if n > 0 {
			return Slot{}, false
		}
	}
	b.pins[c.Slot]++
	of := b.Slot[c.Slot]
	return Slot{State: SlotSealed, Grant: c.Grant, Generation: of.Generation, Step: c.Step, Length: c.Length, Branch: of.Branch}, true
}
