package format

// Pin keeps the slot that holds step from being granted until Unpin, so that it can be read aside from
// training. It returns the slot's header. While another slot is pinned it is refused: with two of three at
// rest training could save no more. busy says that this is why.
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

// Unpin lets a slot go and opens a grant if there was none for want of it.
func (b *Book) Unpin(slot uint32) []Write {
	b.pins[slot]--
	ws := b.grant()
	if len(ws) == 0 {
		return nil
	}
	return append(ws, b.publish())
}
