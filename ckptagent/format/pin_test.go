package format

import (
	"math/rand/v2"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
)

// TestPinnedSlotsAreNeverGranted plays random histories of saves, levels, pins and generations. No grant names a slot that is being read,
// and the other two slots are used in turn.
func TestPinnedSlotsAreNeverGranted(t *testing.T) {
	for seed := range seeds.All(t, uint64(300)) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b, _ := Create(Header{StateBytes: 600})
		b.Begin(1, 0, Point{})
		step, generation, turns := int64(0), int64(1), 0
		var pinned []uint32
		for range 200 {
			switch rnd.IntN(6) {
			case 0, 1, 2: // all ranks save
				if b.Control.Slot == NoSlot {
					break
				}
				step++
				turns++
				b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: step, Length: 9}, 1, 1)
				b.Levels(step, step)
			case 3:
				slot, s, ok, busy := b.Pin(step)
				switch {
				case ok && (s.Step != step || s.State != SlotSealed):
					t.Fatalf("seed %d: pinned %+v for step %d", seed, s, step)
				case ok && len(pinned) > 0 && slot != pinned[0], busy && len(pinned) == 0:
					t.Fatalf("seed %d: pinned %d %v %v beside %v", seed, slot, ok, busy, pinned)
				case ok && len(pinned) > 0:
					b.Unpin(slot)
				case ok:
					pinned = append(pinned, slot)
				}
			case 4:
				if len(pinned) > 0 && rnd.IntN(4) == 0 {
					b.Unpin(pinned[0])
					pinned = nil
				}
			case 5:
				if rnd.IntN(10) == 0 && step > 0 {
					generation++
					step = b.Sealed()[0]
					b.Begin(generation, 0, Point{Step: step})
				}
			}
			if len(pinned) > 0 && b.Control.Slot == pinned[0] {
				t.Fatalf("seed %d: slot %d is granted and pinned", seed, pinned[0])
			}
			if b.Control.Slot == NoSlot {
				t.Fatalf("seed %d: no slot to write with %d pinned: %+v", seed, len(pinned), b)
			}
		}
		if turns < 20 {
			t.Fatalf("seed %d: %d saves", seed, turns)
		}
	}
}

// TestHoldOutlivesTheAgentAndEndsWithTheGeneration reads the control page as the next agent and the client do.
func TestHoldOutlivesTheAgentAndEndsWithTheGeneration(t *testing.T) {
	mem := make(memory, FileSize(600, Slots))
	b, ws := Create(Header{StateBytes: 600})
	mem.carry(ws)
	mem.carry(b.Begin(1, 0, Point{}))
	mem.carry(b.SetBarrier(12))
	before := b.Control.Seq
	mem.carry(b.SetBarrier(12))
	if b.Control.Seq != before+1 {
		t.Error("a hold that is said again is not written again")
	}
	again, err := Open(mem[:MetaBytes])
	if err != nil || again.Control.BarrierStep != 12 {
		t.Fatalf("the next agent reads %+v, %v", again, err)
	}
	mem.carry(again.Begin(2, 0, Point{}))
	if c, err := DecodeControl(mem[ControlOffset : ControlOffset+PageSize]); err != nil || c.BarrierStep != 0 {
		t.Errorf("held in the next generation: %+v, %v", c, err)
	}
}

// TestPinCopy: the slot of a copy that is being sealed is not granted until it is unpinned, however many steps follow. Slots that another
// step or another rank may need are not pinned.
func TestPinCopy(t *testing.T) {
	b, _ := Create(Header{StateBytes: 600})
	b.Begin(7, 0, Point{})
	save := func(step int64) {
		b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: step, Length: 9}, 1, 1)
		b.Levels(step, step)
	}
	c := Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: 1, Length: 9}
	s, ok := b.PinCopy(c)
	if want := (Slot{State: SlotSealed, Grant: c.Grant, Generation: 7, Step: 1, Length: 9}); !ok || s != want {
		t.Errorf("pinned %v %+v, want %+v", ok, s, want)
	}
	for step := int64(1); step < 20; step++ {
		if save(step); b.Control.Slot == c.Slot || b.Control.Slot == NoSlot {
			t.Fatalf("step %d: slot %d is granted, %d is pinned", step, b.Control.Slot, c.Slot)
		}
	}
	if _, ok := b.PinCopy(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: 20, Length: 9}); ok {
		t.Error("a second slot is pinned")
	}
	b.Unpin(c.Slot)
	if _, ok := b.PinCopy(c); ok {
		t.Error("a copy is pinned whose grant has ended")
	}
	two, _ := Create(Header{StateBytes: 600, Slots: 2})
	two.Begin(1, 0, Point{})
	if _, ok := two.PinCopy(Copy{Slot: two.Control.Slot, Grant: two.Control.Grant, Step: 1, Length: 9}); ok {
		t.Error("one of two slots is pinned")
	}
}
