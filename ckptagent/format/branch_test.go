package format

import (
	"slices"
	"testing"
)

// points lists the steps that a book holds sealed.
func (b *Book) points() (out []Point) {
	for _, s := range b.Slot {
		if s.State == SlotSealed {
			out = append(out, s.point())
		}
	}
	return out
}

func TestGivesUp(t *testing.T) {
	for _, c := range []struct {
		sealed, restore Point
		want            bool
	}{
		{Point{Branch: 0, Step: 50}, Point{Branch: 0, Step: 50}, false},
		{Point{Branch: 0, Step: 40}, Point{Branch: 0, Step: 50}, false},
		{Point{Branch: 0, Step: 51}, Point{Branch: 0, Step: 50}, true},
		{Point{Branch: 0, Step: 40}, Point{Branch: 1, Step: 60}, true}, // useless while all ranks hold step 60 of branch 1
		{Point{Branch: 0, Step: 60}, Point{Branch: 1, Step: 60}, true},
		{Point{Branch: 1, Step: 40}, Point{Branch: 0, Step: 50}, true}, // a later branch, which was itself rolled back
		{Point{Branch: 1, Step: 60}, Point{Branch: 1, Step: 60}, false},
		{Point{Branch: 1, Step: 5}, Point{}, true},
	} {
		if got := c.restore.GivesUp(c.sealed); got != c.want {
			t.Errorf("%+v where %+v is restored: %v", c.sealed, c.restore, got)
		}
	}
}

// TestCrashWhileABranchBegins ends the agent at every byte of its writes for the first generation of a branch. In each case the next agent
// completes the writes. Before processes may run, only the restored point is left. What they seal belongs to the new branch.
func TestCrashWhileABranchBegins(t *testing.T) {
	restore := Point{Branch: 0, Step: 50}
	for cut := 0; ; cut++ {
		mem := make(memory, FileSize(600, Slots))
		save := func(b *Book, step int64) []Write {
			return b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: step, Length: 300}, 1, 1)
		}
		b, ws := Create(Header{StateBytes: 600})
		mem.carry(ws)
		mem.carry(b.Begin(5, 0, Point{}))
		for _, step := range []int64{50, 70, 80} {
			mem.carry(save(b, step))
		}
		all := b.Begin(6, 1, restore)
		if mem.carryBytes(all, cut) < cut {
			return
		}
		next, err := Open(mem[:MetaBytes])
		if err != nil {
			t.Fatalf("cut at byte %d: %v", cut, err)
		}
		if slot, ok := next.Find(50); !ok || next.Slot[slot].point() != restore {
			t.Fatalf("cut at byte %d: the restored point is gone: %+v", cut, next.Slot)
		}
		mem.carry(next.Begin(6, 1, restore))
		if got := next.points(); !slices.Equal(got, []Point{restore}) {
			t.Fatalf("cut at byte %d: processes would run beside %+v", cut, got)
		}
		mem.carry(save(next, 60))
		if got, err := Open(mem[:MetaBytes]); err != nil || !slices.Equal(got.points(), []Point{restore, {Branch: 1, Step: 60}}) {
			t.Fatalf("cut at byte %d: holds %+v, %v", cut, got, err)
		}
		mem.carry(next.Begin(7, 1, Point{Branch: 1, Step: 60}))
		if got := next.points(); !slices.Equal(got, []Point{{Branch: 1, Step: 60}}) {
			t.Fatalf("cut at byte %d: step 60 of branch 1 is restored beside %+v", cut, got)
		}
	}
}

// TestTheBranchOutlivesATornControlPage: the header of the granted slot also has the branch, so that an announced copy is sealed with it.
func TestTheBranchOutlivesATornControlPage(t *testing.T) {
	mem := make(memory, FileSize(600, Slots))
	b, ws := Create(Header{StateBytes: 600})
	mem.carry(ws)
	mem.carry(b.Begin(6, 2, Point{}))
	clear(mem[ControlOffset : ControlOffset+PageSize])
	next, err := Open(mem[:MetaBytes])
	if err != nil || next.Control.Branch != 2 || next.Control.Generation != 6 || next.Control.Slot != b.Control.Slot {
		t.Fatalf("read %+v, %v", next, err)
	}
	said := Client{Generation: 6, Branch: 2, Grant: b.Control.Grant, Slot: b.Control.Slot, CopyStep: 9, Length: 5}
	copied, ok := next.Announced(said)
	if !ok {
		t.Fatal("a true announcement is refused")
	}
	next.Seal(copied, 1, 1)
	if got := next.points(); !slices.Equal(got, []Point{{Branch: 2, Step: 9}}) {
		t.Errorf("sealed %+v", got)
	}
}

// TestFillLooksAtTheBranch: a fetched step replaces a step of the same number of another branch. It also gives up steps that are newer by
// number or by branch. Older steps stay, in case the fetch fails.
func TestFillLooksAtTheBranch(t *testing.T) {
	at := func(branch, step, generation int64) Slot {
		return Slot{Branch: branch, Step: step, Generation: generation}
	}
	for name, c := range map[string]struct {
		book *Book
		held bool
		left []Point
	}{
		"the number of an older branch":       {bookOf(0, at(0, 60, 5), at(0, 50, 5)), false, []Point{{Step: 50}}},
		"more of an older branch":             {bookOf(0, at(0, 80, 5), at(0, 60, 4)), false, nil},
		"a lower step of a newer branch":      {bookOf(0, at(2, 55, 5), at(1, 55, 5)), false, []Point{{Branch: 1, Step: 55}}},
		"the very step":                       {bookOf(0, at(1, 60, 5), at(0, 50, 5)), true, []Point{{Step: 50}, {Branch: 1, Step: 60}}},
		"the very step, created again since":  {bookOf(0, at(1, 60, 7)), false, nil},
		"the very step beside another branch": {bookOf(0, at(0, 60, 3), at(1, 60, 5)), true, []Point{{Branch: 1, Step: 60}}},
	} {
		point := Point{Branch: 1, Step: 60}
		if got := c.book.Holds(point, 6); got != c.held {
			t.Errorf("%s: holds step 60 of branch 1: %v", name, got)
		}
		h, _, ok := c.book.BeginFill(point, 6, 100)
		if !ok || !slices.Equal(c.book.Held(), c.left) {
			t.Errorf("%s: %v, holds %+v, want %+v", name, ok, c.book.Held(), c.left)
			continue
		}
		c.book.CommitFill(h, 77, 1)
		if s := c.book.Slot[h.Slot]; s.point() != point || s.Generation != 6 {
			t.Errorf("%s: sealed %+v", name, s)
		}
	}
}

// TestDurableLooksAtTheBranch: a step of a newer branch is newer, whatever its number.
func TestDurableLooksAtTheBranch(t *testing.T) {
	b := bookOf(0)
	for _, c := range []struct {
		at       Point
		reported bool
	}{
		{Point{Step: 80}, true},
		{Point{Step: 70}, false},
		{Point{Branch: 1, Step: 60}, true},
		{Point{Step: 90}, false},
		{Point{Branch: 1, Step: 61}, true},
	} {
		if reported := b.SetDurable(c.at) != nil; reported != c.reported {
			t.Errorf("%+v is reported: %v", c.at, reported)
		}
	}
	if b.Begin(9, 1, Point{Branch: 1, Step: 61}); b.Control.DurableStep != 0 || b.Control.DurableBranch != 0 {
		t.Errorf("a generation begins with %+v", b.Control)
	}
}
