package format

import "fmt"

// SlotState is the state of a slot's data.
type SlotState uint32

const (
	// SlotEmpty: no usable data.
	SlotEmpty SlotState = 0
	// SlotGranted: the client may be writing; the data is never read.
	SlotGranted SlotState = 1
	// SlotSealed: the slot has a complete copy, if the checksum matches.
	SlotSealed SlotState = 2
)

// Slot is the header of one slot.
type Slot struct {
	State      SlotState
	Grant      uint64
	Generation int64
	// Step, Length (bytes), CRC and SealedAt (Unix nanoseconds) are set only in sealed slots.
	Step     int64
	Length   uint64
	CRC      uint32
	SealedAt int64
	// Branch is the grant's branch, and the step's once it is sealed.
	Branch int64
	// Flags are SlotFromStorage and SlotUnauthenticated.
	Flags uint32
}

const (
	// SlotFromStorage marks a slot that was filled from storage.
	SlotFromStorage = 1
	// SlotUnauthenticated marks a slot whose data in storage was not authenticated.
	SlotUnauthenticated = 2
)

func (s Slot) point() Point { return Point{Branch: s.Branch, Step: s.Step} }

// Encode returns the slot header's record.
func (s Slot) Encode() []byte {
	b := newRecord(magicSlot)
	le.PutUint32(b[12:], uint32(s.State))
	le.PutUint64(b[16:], s.Grant)
	le.PutUint64(b[24:], uint64(s.Generation))
	le.PutUint64(b[32:], uint64(s.Step))
	le.PutUint64(b[40:], s.Length)
	le.PutUint32(b[48:], s.CRC)
	le.PutUint64(b[56:], uint64(s.SealedAt))
	le.PutUint64(b[64:], uint64(s.Branch))
	le.PutUint32(b[72:], s.Flags)
	return seal(b)
}

// DecodeSlot decodes a slot header.
func DecodeSlot(b []byte) (Slot, error) {
	if err := check(b, magicSlot); err != nil {
		return Slot{}, fmt.Errorf("slot header: %w", err)
	}
	s := Slot{
		State:      SlotState(le.Uint32(b[12:])),
		Grant:      le.Uint64(b[16:]),
		Generation: int64(le.Uint64(b[24:])),
		Step:       int64(le.Uint64(b[32:])),
		Length:     le.Uint64(b[40:]),
		CRC:        le.Uint32(b[48:]),
		SealedAt:   int64(le.Uint64(b[56:])),
	}
	s.Branch, s.Flags = int64(le.Uint64(b[64:])), le.Uint32(b[72:])
	if s.State > SlotSealed {
		return Slot{}, fmt.Errorf("slot header: %w: state %d", ErrVersion, s.State)
	}
	return s, nil
}
