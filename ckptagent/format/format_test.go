package format

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/internal/seeds"
)

func TestSizes(t *testing.T) {
	for _, c := range []struct{ state, stride, size uint64 }{
		{0, 0, 32768}, {1, 4096, 45056}, {4096, 4096, 45056}, {4097, 8192, 57344}, {40 << 30, 40 << 30, 120<<30 + 32768},
	} {
		if Stride(c.state) != c.stride || FileSize(c.state, Slots) != c.size || FileSize(c.state, MinSlots) != c.size-c.stride {
			t.Errorf("state %d: stride %d, file %d; want %d, %d", c.state, Stride(c.state), FileSize(c.state, Slots), c.stride, c.size)
		}
		if DataOffset(2, c.state)%PageSize != 0 {
			t.Errorf("state %d: slot 2 at %d is not aligned", c.state, DataOffset(2, c.state))
		}
	}
}

func TestEveryDamagedByteIsSeen(t *testing.T) {
	whole := Slot{State: SlotSealed, Grant: 5, Generation: 2, Step: 10, Length: 99, CRC: 7}.Encode()
	for i := range whole {
		damaged := slices.Clone(whole)
		damaged[i] ^= 0x40
		if _, err := DecodeSlot(damaged); err == nil {
			t.Fatalf("byte %d changed and was not detected", i)
		}
	}
	future := Slot{State: SlotSealed}.Encode()
	le.PutUint32(future[8:], Version+1)
	if _, err := DecodeSlot(seal(future)); !errors.Is(err, ErrVersion) {
		t.Fatalf("version %d reads as %v, want ErrVersion", Version+1, err)
	}
	if _, err := DecodeSlot(Slot{State: SlotSealed}.Encode()[:RecordSize/2]); !errors.Is(err, ErrTorn) {
		t.Fatalf("half a record reads as %v, want ErrTorn", err)
	}
	if _, err := DecodeSlot(make([]byte, RecordSize)); !errors.Is(err, ErrTorn) {
		t.Fatalf("zeroes read as %v, want ErrTorn", err)
	}
}

// TestAnotherGeometryIsAnotherVersion: an arena whose slots are at other offsets is refused.
func TestAnotherGeometryIsAnotherVersion(t *testing.T) {
	h := Header{LocalRank: 1, StateBytes: 600, PodUID: "uid"}
	for slots, want := range map[uint32]bool{1: false, 2: true, 3: true, 4: false} {
		h.Slots = slots
		if got, err := DecodeHeader(h.Encode()); (err == nil && got == h) != want || err != nil && !errors.Is(err, ErrVersion) {
			t.Fatalf("%d slots: %+v, %v", slots, got, err)
		}
	}
	h.Slots = Slots
	for name, at := range map[string]int{"slots": 12, "size of a page": 16, "bytes before the slots": 32, "stride": 40} {
		b := h.Encode()
		b[at]++
		if _, err := DecodeHeader(seal(b)); !errors.Is(err, ErrVersion) {
			t.Errorf("other %s: %v", name, err)
		}
	}
}

func TestFlagsOfTheClient(t *testing.T) {
	for _, c := range []Client{{}, {Attached: true}, {Restored: true}, {Attached: true, Restored: true}} {
		if got, err := decodeClientRecord(c.Encode()); err != nil || got != c {
			t.Errorf("%+v is read as %+v, %v", c, got, err)
		}
	}
}

func TestSlotReusable(t *testing.T) {
	for _, c := range []struct {
		step, commonStep, reclaimBelow int64
		want                           bool
	}{
		{10, 10, 20, false}, // the common step
		{10, 20, 20, true},  // below both
		{20, 10, 20, false}, // the step reclaimBelow itself may become common
		{30, 10, 20, false}, // above: may become common
		{15, 10, 20, true},  // between both: some rank has sealed a newer step without having this one
		{10, 0, 0, false},   // nothing known
	} {
		if got := SlotReusable(c.step, c.commonStep, c.reclaimBelow); got != c.want {
			t.Errorf("step %d, common %d, reclaim below %d: %v", c.step, c.commonStep, c.reclaimBelow, got)
		}
	}
}

// levelsOf computes a gang's levels from the steps that each rank holds, as the coordinator does.
func levelsOf(inventories [][]int64) (commonStep, reclaimBelow int64) {
	var points [][]Point
	for _, inventory := range inventories {
		points = append(points, protocoltest.FirstBranch(inventory...))
	}
	commonStep = restore.InMemory(points, nil).Step
	for i, inventory := range inventories {
		newest := int64(0)
		if len(inventory) > 0 {
			newest = slices.Max(inventory)
		}
		if i == 0 || newest < reclaimBelow {
			reclaimBelow = newest
		}
	}
	return commonStep, reclaimBelow
}

// TestStaleLevelsAreSafe: agents have old levels in any mixture, and ranks save in any order. The newest step that all ranks hold is never
// overwritten.
func TestStaleLevelsAreSafe(t *testing.T) {
	newestSum := int64(0)
	for seed := range seeds.All(t, uint64(300)) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const ranks = 4
		books := make([]*Book, ranks)
		steps := make([]int64, ranks)
		type levels struct{ commonStep, reclaimBelow int64 }
		reported := []levels{{}}
		for i := range books {
			books[i], _ = Create(Header{StateBytes: 100})
			books[i].Begin(1, 0, Point{})
		}
		best := int64(0)
		for range 400 {
			r := rng.IntN(ranks)
			if steps[r] > slices.Min(steps)+1 {
				continue // training is synchronous: no rank is far ahead
			}
			steps[r]++
			b := books[r]
			if rng.IntN(4) > 0 && b.Control.Slot != NoSlot {
				b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: steps[r], Length: 1}, 0, 0)
			}
			var inventories [][]int64
			for _, b := range books {
				inventories = append(inventories, b.Sealed())
			}
			commonStep, reclaimBelow := levelsOf(inventories)
			if commonStep < best {
				t.Fatalf("seed %d: step %d was held by all and is gone; held: %v", seed, best, inventories)
			}
			best = commonStep
			reported = append(reported, levels{commonStep, reclaimBelow})
			for range ranks {
				old := reported[max(0, len(reported)-1-rng.IntN(8))]
				books[rng.IntN(ranks)].Levels(old.commonStep, old.reclaimBelow)
			}
		}
		newestSum += best
	}
	if !seeds.One() && newestSum/300 < 20 {
		t.Fatalf("the newest common step is %d on average: too little was saved for this to mean anything", newestSum/300)
	}
}

func TestAnnouncedRefuses(t *testing.T) {
	b, _ := Create(Header{StateBytes: 100})
	b.Begin(3, 0, Point{})
	good := Client{Generation: 3, Grant: b.Control.Grant, Slot: b.Control.Slot, CopyStep: 1, Length: 100}
	if _, ok := b.Announced(good); !ok {
		t.Fatal("a true announcement is refused")
	}
	for name, change := range map[string]func(*Client){
		"nothing":          func(c *Client) { *c = Client{} },
		"older grant":      func(c *Client) { c.Grant-- },
		"newer grant":      func(c *Client) { c.Grant++ },
		"another slot":     func(c *Client) { c.Slot++ },
		"older generation": func(c *Client) { c.Generation-- },
		"too long":         func(c *Client) { c.Length = 101 },
		"empty":            func(c *Client) { c.Length = 0 },
		"step 0":           func(c *Client) { c.CopyStep = 0 },
		"another branch":   func(c *Client) { c.Branch++ },
	} {
		c := good
		change(&c)
		if _, ok := b.Announced(c); ok {
			t.Errorf("%s: taken for a copy", name)
		}
	}
}

func TestBeginEmptiesTheAbandoned(t *testing.T) {
	b, _ := Create(Header{StateBytes: 100})
	b.Begin(1, 0, Point{})
	for step := int64(10); step <= 20; step += 10 {
		b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: step, Length: 1}, 0, 0)
	}
	b.Begin(2, 0, Point{Step: 10})
	if got := b.Sealed(); !slices.Equal(got, []int64{10}) {
		t.Fatalf("holds %v, want [10]: 20 belongs to a history that no longer is", got)
	}
	if b.Control.Slot == NoSlot || b.Slot[b.Control.Slot].Generation != 2 {
		t.Fatalf("no grant for generation 2: %+v", b.Control)
	}
	grant := b.Control.Grant
	b.Begin(2, 0, Point{Step: 10})
	if b.Control.Grant != grant {
		t.Fatal("beginning the same generation again handed out another grant")
	}
}

func TestDrop(t *testing.T) {
	b, _ := Create(Header{StateBytes: 100})
	b.Begin(1, 0, Point{})
	b.Seal(Copy{Slot: b.Control.Slot, Grant: b.Control.Grant, Step: 5, Length: 1}, 0, 0)
	slot, ok := b.Find(5)
	if !ok || len(b.Drop(slot)) != 1 {
		t.Fatal("sealed slot was not dropped")
	}
	if _, ok := b.Find(5); ok || len(b.Drop(slot)) != 0 {
		t.Fatal("a dropped slot is still there")
	}
}

// memory is the file of an arena, in which the writes of a Book are carried out.
type memory []byte

func (m memory) carry(ws []Write) {
	for _, w := range ws {
		copy(m[w.Offset:], w.Bytes)
	}
}

// carryBytes carries out the first n bytes of the writes, and returns their total size.
func (m memory) carryBytes(ws []Write, n int) (whole int) {
	for _, w := range ws {
		part := min(max(n-whole, 0), len(w.Bytes))
		copy(m[w.Offset:], w.Bytes[:part])
		whole += len(w.Bytes)
	}
	return whole
}

// TestReasons: the text of each reason is that of docs/formats/checkpoint.md.
func TestReasons(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/checkpoint.md")
	if err != nil {
		t.Fatal(err)
	}
	for r := ReasonUnequal; r <= ReasonClosure; r++ {
		if row := fmt.Sprintf("\n| %d | %s |\n", r, r); !strings.Contains(string(page), row) {
			t.Errorf("docs/formats/checkpoint.md has no row %q", row)
		}
	}
	if got := Reason(99).String(); got != "reason 99, unknown to this agent" {
		t.Error(got)
	}
}

func TestJoinChecksums(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	whole := Checksum(data)
	for _, cut := range []int{0, 1, 7, 8, 4096, 100_003, len(data) - 1, len(data)} {
		if got := JoinChecksums(Checksum(data[:cut]), Checksum(data[cut:]), uint64(len(data)-cut)); got != whole {
			t.Errorf("cut at %d: %08x, want %08x", cut, got, whole)
		}
	}
}
