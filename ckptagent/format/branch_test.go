package format

import (
	"slices"
	"testing"
)

// points lists what a book holds sealed.
func (b *Book) points() (out []Point) {
	for _, s := range b.Slot {
		if s.State == SlotSealed {
			out = append(out, s.point())
		}
	}
	return out
}

func TestAbandoned(t *testing.T) {
	for _, c := range []struct {
		sealed, restore Point
		want            bool
	}{
		{Point{0, 50}, Point{0, 50}, false},
		{Point{0, 40}, Point{0, 50}, false},
		{Point{0, 51}, Point{0, 50}, true},
		{Point{0, 40}, Point{1, 60}, true}, // of no use while all hold step 60 of branch 1
		{Point{0, 60}, Point{1, 60}, true},
		{Point{1, 40}, Point{0, 50}, true}, // a later branch that was itself gone behind
		{Point{1, 60}, Point{1, 60}, false},
		{Point{1, 5}, Point{}, true},
	} {
		if got := Abandoned(c.sealed, c.restore); got != c.want {
			t.Errorf("%+v where %+v is restored: %v", c.sealed, c.restore, got)
		}
	}
}

// TestCrashWhileABranchBegins cuts the agent at every byte of what it writes for the first generation of a branch. Whatever
// is left, the next agent empties the rest: only the restored point is there once processes may run, and what they seal is of
// the new branch.
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
		if got, err := Open(mem[:MetaBytes]); err != nil || !slices.Equal(got.points(), []Point{restore, {1, 60}}) {
			t.Fatalf("cut at byte %d: holds %+v, %v", cut, got, err)
		}
		mem.carry(next.Begin(7, 1, Point{Branch: 1, Step: 60}))
		if got := next.points(); !slices.Equal(got, []Point{{1, 60}}) {
			t.Fatalf("cut at byte %d: step 60 of branch 1 is restored beside %+v", cut, got)
		}
	}
}

// TestTheBranchOutlivesATornControlPage: the granted slot names it as well, so that what is announced is sealed as of its branch.
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
	if got := next.points(); !slices.Equal(got, []Point{{2, 9}}) {
		t.Errorf("sealed %+v", got)
	}
}
