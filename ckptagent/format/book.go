package format

import (
	"errors"
	"fmt"
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// Write is one record to be written at an offset of the arena, by one call. Writes are carried out in the given order, each completed
// before the next begins.
type Write struct {
	Offset int64
	Bytes  []byte
}

// Book is the agent's view of one arena.
//
// Invariants: at most one slot is granted, and it is the slot that the control record names (after Begin). Grant numbers only rise. A
// sealed slot is granted again only if SlotReusable allows it.
//
//	         Begin, Levels: grant            Seal
//	empty ─────────────────────────▶ granted ─────▶ sealed
//	  ▲ │                              ▲             ▲ │ Levels: reusable
//	  │ │ BeginFill: hole  CommitFill │             │ │
//	  │ └──────────────────────────────┼─────────────┘ │
//	  │                                └───────────────┤
//	  └────────────────────────────────────────────────┘ Begin: abandoned · Drop: does not verify
//
// Seal and CommitFill end in seal.
type Book struct {
	Header  Header
	Control Control
	// Slot has one entry per slot of the arena.
	Slot []Slot

	// pins counts, for each slot, its readers and fillers beside training. A pinned slot is never granted. It may be emptied if its step is
	// given up; its bytes stay. Pins are not stored.
	pins []int
}

// Copy is a complete copy whose checksum Seal requires.
type Copy struct {
	Slot   uint32
	Grant  uint64
	Step   int64
	Offset int64
	Length uint64
}

// Create returns the Book of a new arena. The writes must be carried out before the rank receives the file.
func Create(h Header) (*Book, []Write) {
	if h.Slots == 0 {
		h.Slots = Slots
	}
	b := newBook(h)
	b.Control = Control{Slot: NoSlot, Seq: 1}
	var ws []Write
	for i := range b.Slot {
		ws = append(ws, b.slotWrite(uint32(i)))
	}
	ws = append(ws, b.controlWrite(), Write{HeaderOffset, h.Encode()})
	return b, ws
}

func newBook(h Header) *Book {
	return &Book{Header: h, Slot: make([]Slot, h.Slots), pins: make([]int, h.Slots)}
}

// Open reads the Book from the first MetaBytes of an arena. After an error the arena is unusable and must be re-created.
func Open(meta []byte) (*Book, error) {
	if len(meta) < MetaBytes {
		return nil, fmt.Errorf("arena of %d bytes: %w", len(meta), ErrTorn)
	}
	h, err := DecodeHeader(meta)
	if err != nil {
		return nil, err
	}
	b := newBook(h)
	control, err := DecodeControl(meta[ControlOffset : ControlOffset+PageSize])
	if err != nil && errors.Is(err, ErrVersion) {
		return nil, err
	}
	torn := make([]bool, len(b.Slot))
	for i := range b.Slot {
		at := SlotHeaderOffset(uint32(i))
		s, err := DecodeSlot(meta[at : at+RecordSize])
		if err != nil {
			torn[i] = true
			continue
		}
		if s.State == SlotSealed && s.Length > h.StateBytes {
			continue // complete but inconsistent: discarded
		}
		b.Slot[i] = s
	}
	b.Control = control
	b.reopenGrant(torn, meta)
	return b, nil
}

// reopenGrant makes slot headers and control record agree after the agent died between two writes.
func (b *Book) reopenGrant(torn []bool, meta []byte) {
	c := &b.Control
	if c.Seq == 0 { // no complete control record: the slot headers alone count
		c.Slot = NoSlot
		for _, s := range b.Slot {
			if s.Generation >= c.Generation {
				c.Generation, c.Branch = s.Generation, max(c.Branch, s.Branch)
			}
		}
	}
	// The agent died while it sealed the slot, so the control record still holds.
	if c.Slot < b.Header.Slots && torn[c.Slot] {
		b.Slot[c.Slot] = Slot{State: SlotGranted, Grant: c.Grant, Generation: c.Generation, Branch: c.Branch}
	}
	open := NoSlot
	for i, s := range b.Slot {
		c.Grant = max(c.Grant, s.Grant)
		// The agent died during Begin, which left a grant of another generation; Begin is repeated.
		if s.State == SlotGranted && s.Generation == c.Generation &&
			(open == NoSlot || s.Grant > b.Slot[open].Grant) {
			open = uint32(i)
		}
	}
	for i := range b.Slot {
		if b.Slot[i].State == SlotGranted && uint32(i) != open {
			b.Slot[i].State = SlotEmpty
		}
	}
	c.Slot = open
	if open != NoSlot {
		c.Grant = b.Slot[open].Grant
		return
	}
	if cl, err := DecodeClient(meta[ClientOffset : ClientOffset+PageSize]); err == nil {
		c.Grant = max(c.Grant, cl.Grant) // never reuse a number that a client has seen
	}
}

// Begin prepares the arena for a generation of branch that restores a point (step 0: the beginning) and opens a grant. Every process of
// older generations must be gone. For the Book's present generation it returns what Publish returns.
func (b *Book) Begin(generation, branch int64, restore Point) []Write {
	if generation == b.Control.Generation && b.Control.Seq > 0 {
		return b.Publish()
	}
	var ws []Write
	for i, s := range b.Slot {
		if s.State == SlotSealed && restore.GivesUp(s.point()) || s.State == SlotGranted {
			b.Slot[i] = Slot{Grant: s.Grant, Generation: s.Generation}
			ws = append(ws, b.slotWrite(uint32(i)))
		}
	}
	b.Control.Generation, b.Control.Branch = generation, branch
	b.Control.Slot = NoSlot
	b.Control.CommonStep, b.Control.ReclaimBelow, b.Control.BarrierStep = restore.Step, restore.Step, 0
	b.Control.DurableStep, b.Control.DurableBranch = 0, 0
	ws = append(ws, b.grant()...)
	return append(ws, b.publish())
}

// Abandon empties the sealed slots that a generation gave up by restoring a point, if the generation never began in this arena because it
// ran and ended elsewhere.
func (b *Book) Abandon(generation int64, restore Point) []Write {
	var ws []Write
	for i, s := range b.Slot {
		if s.State == SlotSealed && b.Control.Generation < generation && restore.GivesUp(s.point()) {
			ws = append(ws, b.Drop(uint32(i))...)
		}
	}
	return ws
}

// Publish writes the control record again: after Open, so that the client reads the open grant whatever state the previous agent left.
func (b *Book) Publish() []Write {
	ws := b.grant()
	return append(ws, b.publish())
}

// Levels sets the gang's common step and reclaimBelow and opens a grant if there is none and a slot is free. Both only rise within a
// generation; lower values are outdated and ignored. Levels returns nothing if nothing changed.
func (b *Book) Levels(commonStep, reclaimBelow int64) []Write {
	c := &b.Control
	changed := commonStep > c.CommonStep || reclaimBelow > c.ReclaimBelow
	c.CommonStep, c.ReclaimBelow = max(c.CommonStep, commonStep), max(c.ReclaimBelow, reclaimBelow)
	ws := b.grant()
	if !changed && len(ws) == 0 {
		return nil
	}
	return append(ws, b.publish())
}

// SetDurable writes for the client the newest step that is complete in storage and recorded. Within a generation it only rises. SetDurable
// returns nothing if nothing changed.
func (b *Book) SetDurable(at Point) []Write {
	if at.Compare(Point{Branch: b.Control.DurableBranch, Step: b.Control.DurableStep}) <= 0 {
		return nil
	}
	b.Control.DurableStep, b.Control.DurableBranch = at.Step, at.Branch
	return []Write{b.publish()}
}

// SetBarrier writes the step at which clients stay in their save (0: none) and rewrites the control record each time: a client stops
// waiting if its control record was not rewritten for long.
func (b *Book) SetBarrier(step int64) []Write {
	b.Control.BarrierStep = step
	return []Write{b.publish()}
}

// Announced returns the complete copy that a client record announces under the open grant. Announced ignores an announcement under any
// other grant and one with impossible values.
func (b *Book) Announced(c Client) (Copy, bool) {
	open := b.Control.Slot
	if open == NoSlot || c.Grant == 0 || c.Grant != b.Control.Grant || c.Slot != open {
		return Copy{}, false
	}
	if c.Generation != b.Slot[open].Generation || c.Branch != b.Slot[open].Branch || c.CopyStep <= 0 ||
		c.Length == 0 || c.Length > b.Header.StateBytes {
		return Copy{}, false
	}
	return Copy{
		Slot: open, Grant: c.Grant, Step: c.CopyStep,
		Offset: DataOffset(open, b.Header.StateBytes), Length: c.Length,
	}, true
}

// Seal seals a copy whose bytes have checksum crc, then opens the next grant if a slot is free. Seal ignores a copy whose grant is no
// longer open.
func (b *Book) Seal(c Copy, crc uint32, sealedAt int64) []Write {
	if c.Slot != b.Control.Slot || c.Grant != b.Control.Grant {
		return nil
	}
	granted := b.Slot[c.Slot]
	ws := []Write{b.seal(c, Slot{Generation: granted.Generation, Branch: granted.Branch}, crc, sealedAt)}
	b.Control.Slot = NoSlot
	ws = append(ws, b.grant()...)
	return append(ws, b.publish())
}

// seal returns the header of a sealed slot; of holds the flags of its source.
func (b *Book) seal(c Copy, of Slot, crc uint32, sealedAt int64) Write {
	b.Slot[c.Slot] = Slot{
		State: SlotSealed, Grant: c.Grant, Generation: of.Generation, Step: c.Step, Length: c.Length, CRC: crc, SealedAt: sealedAt,
		Branch: of.Branch, Flags: of.Flags,
	}
	return b.slotWrite(c.Slot)
}

// Drop empties a sealed slot whose data does not verify.
func (b *Book) Drop(slot uint32) []Write {
	s := b.Slot[slot]
	if s.State != SlotSealed {
		return nil
	}
	b.Slot[slot] = Slot{Grant: s.Grant, Generation: s.Generation}
	return []Write{b.slotWrite(slot)}
}

// Held returns the steps that the arena holds, ascending by number.
func (b *Book) Held() []Point {
	var held []Point
	for _, s := range b.Slot {
		if s.State == SlotSealed && !slices.Contains(held, s.point()) {
			held = append(held, s.point())
		}
	}
	protocol.ByStep(held)
	return held
}

// Sealed returns the numbers of these steps.
func (b *Book) Sealed() []int64 { return slices.Compact(protocol.Steps(b.Held())) }

// Find returns the slot to restore step from: if two hold it, the one sealed under the higher grant.
func (b *Book) Find(step int64) (uint32, bool) {
	found := NoSlot
	for i, s := range b.Slot {
		if s.State == SlotSealed && s.Step == step && (found == NoSlot || s.Grant > b.Slot[found].Grant) {
			found = uint32(i)
		}
	}
	return found, found != NoSlot
}

// grant opens a grant if none is open and a slot may be written.
func (b *Book) grant() []Write {
	if b.Control.Slot != NoSlot || b.Control.Generation == 0 {
		return nil
	}
	slot := b.free()
	if slot == NoSlot {
		return nil
	}
	b.Control.Grant++
	b.Control.Slot = slot
	b.Slot[slot] = Slot{State: SlotGranted, Grant: b.Control.Grant, Generation: b.Control.Generation, Branch: b.Control.Branch}
	return []Write{b.slotWrite(slot)}
}

// free returns the slot to be written next: an empty one, else that of the oldest reusable step.
func (b *Book) free() uint32 {
	best := NoSlot
	for i, s := range b.Slot {
		if b.pins[i] > 0 {
			continue
		}
		if s.State != SlotSealed {
			return uint32(i)
		}
		if SlotReusable(s.Step, b.Control.CommonStep, b.Control.ReclaimBelow) &&
			(best == NoSlot || s.Step < b.Slot[best].Step) {
			best = uint32(i)
		}
	}
	return best
}

func (b *Book) slotWrite(slot uint32) Write {
	return Write{SlotHeaderOffset(slot), b.Slot[slot].Encode()}
}

func (b *Book) publish() Write {
	b.Control.Seq++
	return b.controlWrite()
}

func (b *Book) controlWrite() Write {
	return Write{recordOffset(ControlOffset, b.Control.Seq), b.Control.Encode()}
}
