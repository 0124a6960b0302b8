package format

import (
	"slices"
	"testing"
)

// bookOf returns a book with these steps in slots 0, 1, 2, sealed in these generations; generation 0: the slot is empty.
func bookOf(commonStep int64, slots ...Slot) *Book {
	b, _ := Create(Header{StateBytes: 600})
	b.Control.Generation, b.Control.CommonStep, b.Control.Grant, b.Control.Seq = 5, commonStep, 9, 4
	for i, s := range slots {
		if s.Step > 0 {
			s.State, s.Grant, s.Length = SlotSealed, uint64(i+1), 9
			b.Slot[i] = s
		}
	}
	return b
}

func TestBring(t *testing.T) {
	at := func(step, generation int64) Slot { return Slot{Step: step, Generation: generation} }
	for name, c := range map[string]struct {
		book *Book
		slot uint32
		left []int64
	}{
		"an empty arena":               {bookOf(0), 0, nil},
		"a free slot":                  {bookOf(0, at(1, 5), Slot{}, at(2, 5)), 1, []int64{1, 2}},
		"newer ones are given up":      {bookOf(0, at(9, 5), at(2, 5), at(8, 5)), 0, []int64{2}},
		"the oldest":                   {bookOf(0, at(3, 5), at(1, 5), at(2, 5)), 1, []int64{2, 3}},
		"never the common one":         {bookOf(1, at(3, 5), at(1, 5), at(2, 5)), 2, []int64{1, 3}},
		"the same step, created again": {bookOf(0, at(1, 3), at(7, 6), at(2, 3)), 1, []int64{1, 2}},
		"two newer, the lower number":  {bookOf(0, at(1, 3), at(12, 5), at(11, 5)), 1, []int64{1}},
	} {
		h, ws, ok := c.book.BeginFill(Point{Step: 7}, 5, 100)
		if !ok || h.Slot != c.slot || !slices.Equal(c.book.Sealed(), c.left) || len(ws) == 0 {
			t.Errorf("%s: slot %d, holds %v, %v; want slot %d, %v", name, h.Slot, c.book.Sealed(), ok, c.slot, c.left)
			continue
		}
		if c.book.free() == h.Slot {
			t.Errorf("%s: the hole could be granted", name)
		}
		if _, ok := c.book.CommitFill(h, 77, 1); !ok || !c.book.Holds(Point{Step: 7}, 5) || c.book.Holds(Point{Step: 7}, 4) {
			t.Errorf("%s: brought, and the book has %+v", name, c.book.Slot)
		}
		if slot, ok := c.book.Find(7); !ok || slot != h.Slot || c.book.Slot[slot].CRC != 77 {
			t.Errorf("%s: found in %d", name, slot)
		}
	}
	for _, c := range []struct {
		step   int64
		length uint64
		want   bool
	}{{1, 600, true}, {1, 1, true}, {1, 601, false}, {1, 0, false}, {0, 100, false}} {
		if _, _, ok := bookOf(0).BeginFill(Point{Step: c.step}, 5, c.length); ok != c.want {
			t.Errorf("%d bytes of step %d in slots of 600: %v", c.length, c.step, ok)
		}
	}
	same := bookOf(0, at(7, 5))
	if h, _, ok := same.BeginFill(Point{Step: 7}, 5, 100); !ok || h.Slot != 1 || !slices.Equal(same.Sealed(), []int64{7}) {
		t.Errorf("the same step of the same generation was given up: slot %d, holds %v", h.Slot, same.Sealed())
	}
}

// TestAHoleIsOfNoUseOnceAGenerationBegan: a fetch that completes after a generation began seals no step that the generation gave up.
func TestAHoleIsOfNoUseOnceAGenerationBegan(t *testing.T) {
	b := bookOf(0)
	h, _, _ := b.BeginFill(Point{Step: 7}, 5, 100)
	b.Begin(6, 0, Point{Step: 3})
	if b.Control.Slot == h.Slot {
		t.Error("the hole was granted while it is filled")
	}
	if ws, ok := b.CommitFill(h, 1, 1); ok || ws != nil || len(b.Sealed()) > 0 {
		t.Errorf("sealed %v", b.Sealed())
	}
	h, _, _ = b.BeginFill(Point{Step: 7}, 5, 100)
	b.AbortFill(h)
	if slices.Max(b.pins) != 0 {
		t.Errorf("pins %v", b.pins)
	}
}

// TestCrashWhileASlotIsFilled ends the agent before and within every write of a fetch. The next agent finds the step complete or not at
// all, and finds all steps that the fetch did not give up.
func TestCrashWhileASlotIsFilled(t *testing.T) {
	data := pattern(0, 5, 7, 300)
	for _, commonStep := range []int64{0, 1} {
		for cut := 0; ; cut++ {
			mem := make(memory, FileSize(600, Slots))
			b, ws := Create(Header{StateBytes: 600})
			mem.carry(ws)
			mem.carry(b.Begin(5, 0, Point{}))
			for _, step := range []int64{1, 9} {
				copy(mem[DataOffset(b.Control.Slot, 600):], pattern(0, 5, step, 300))
				mem.carry(b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: step, Length: 300}, Checksum(pattern(0, 5, step, 300)), 1))
			}
			mem.carry(b.Levels(commonStep, commonStep))
			h, all, _ := b.BeginFill(Point{Step: 7}, 5, 300)
			for at := 0; at < len(data); at += 100 {
				all = append(all, Write{h.Offset + int64(at), data[at : at+100]})
			}
			ws, _ = b.CommitFill(h, Checksum(data), 1)
			all = append(all, ws...)
			bytes := mem.carryBytes(all, cut)
			if cut > bytes {
				break
			}
			next, err := Open(mem[:MetaBytes])
			if err != nil {
				t.Fatalf("cut at byte %d: %v", cut, err)
			}
			if _, ok := next.Find(1); !ok {
				t.Fatalf("cut at byte %d: step 1 is gone: %+v", cut, next.Slot)
			}
			for i, s := range next.Slot {
				at := DataOffset(uint32(i), 600)
				if s.State == SlotSealed && Checksum(mem[at:at+int64(s.Length)]) != s.CRC {
					t.Fatalf("cut at byte %d: slot %d holds step %d torn", cut, i, s.Step)
				}
			}
			if cut == bytes && !next.Holds(Point{Step: 7}, 5) {
				t.Fatalf("the fetch is done and step 7 is not there: %+v", next.Slot)
			}
		}
	}
}
