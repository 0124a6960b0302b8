package format

import (
	"bytes"
	"fmt"
)

// Header describes an arena; it never changes.
type Header struct {
	LocalRank  uint32
	StateBytes uint64
	// CreatedAt is in Unix nanoseconds.
	CreatedAt int64
	// PodUID is at most 40 bytes.
	PodUID string
}

// Encode returns the header's record.
func (h Header) Encode() []byte {
	b := newRecord(magicHeader)
	le.PutUint32(b[12:], Slots)
	le.PutUint32(b[16:], PageSize)
	le.PutUint32(b[20:], h.LocalRank)
	le.PutUint64(b[24:], h.StateBytes)
	le.PutUint64(b[32:], MetaBytes)
	le.PutUint64(b[40:], Stride(h.StateBytes))
	le.PutUint64(b[48:], uint64(h.CreatedAt))
	copy(b[56:96], h.PodUID)
	return seal(b)
}

// DecodeHeader reads the record that starts an arena.
func DecodeHeader(b []byte) (Header, error) {
	if err := check(b, magicHeader); err != nil {
		return Header{}, fmt.Errorf("arena header: %w", err)
	}
	h := Header{
		LocalRank:  le.Uint32(b[20:]),
		StateBytes: le.Uint64(b[24:]),
		CreatedAt:  int64(le.Uint64(b[48:])),
		PodUID:     string(bytes.TrimRight(b[56:96], "\x00")),
	}
	if le.Uint32(b[12:]) != Slots || le.Uint32(b[16:]) != PageSize ||
		le.Uint64(b[32:]) != MetaBytes || le.Uint64(b[40:]) != Stride(h.StateBytes) {
		return Header{}, fmt.Errorf("arena header: %w: its geometry is not that of version %d", ErrVersion, Version)
	}
	return h, nil
}

// Control is what the agent tells the client.
type Control struct {
	// Seq numbers the agent's writes of this page.
	Seq uint64
	// Slot may be written under Grant by processes of Generation; NoSlot: none.
	Slot       uint32
	Generation int64
	Grant      uint64
	// CommonStep and ReclaimBelow are the coordinator's levels, for people.
	CommonStep, ReclaimBelow int64
	// BarrierStep: whoever has saved a step at or above it stays in that save; 0: nobody is held.
	BarrierStep int64
	// DurableStep is the newest step of this generation's line that lies whole in storage and is recorded; 0: none is known.
	DurableStep int64
}

// Encode returns the control record.
func (c Control) Encode() []byte {
	b := newRecord(magicControl)
	le.PutUint32(b[12:], c.Slot)
	le.PutUint64(b[16:], c.Seq)
	le.PutUint64(b[24:], uint64(c.Generation))
	le.PutUint64(b[32:], c.Grant)
	le.PutUint64(b[40:], uint64(c.CommonStep))
	le.PutUint64(b[48:], uint64(c.ReclaimBelow))
	le.PutUint64(b[56:], uint64(c.BarrierStep))
	le.PutUint64(b[72:], uint64(c.DurableStep))
	return seal(b)
}

func decodeControlRecord(b []byte) (Control, error) {
	if err := check(b, magicControl); err != nil {
		return Control{}, err
	}
	return Control{
		Slot:         le.Uint32(b[12:]),
		Seq:          le.Uint64(b[16:]),
		Generation:   int64(le.Uint64(b[24:])),
		Grant:        le.Uint64(b[32:]),
		CommonStep:   int64(le.Uint64(b[40:])),
		ReclaimBelow: int64(le.Uint64(b[48:])),
		BarrierStep:  int64(le.Uint64(b[56:])),
		DurableStep:  int64(le.Uint64(b[72:])),
	}, nil
}

// DecodeControl reads the newer whole record of a control page.
func DecodeControl(page []byte) (Control, error) {
	c, err := newer(page, decodeControlRecord, func(c Control) uint64 { return c.Seq })
	if err != nil {
		return Control{}, fmt.Errorf("control page: %w", err)
	}
	return c, nil
}

// Client is what the client tells the agent.
type Client struct {
	// Seq numbers the client's writes of this page.
	Seq        uint64
	Generation int64
	PID        uint32
	Attached   bool
	Restored   bool
	// RestoredStep is what was restored, if Restored; 0: the client started from the beginning.
	RestoredStep int64
	// Step is the newest finished step that the script told.
	Step int64

	// Slot, Grant, CopyStep and Length announce the newest complete copy; Grant 0: none.
	Slot     uint32
	Grant    uint64
	CopyStep int64
	Length   uint64

	// Saves counts copies, Skipped saves without a free slot, Refused saves of a state that cannot be held.
	Saves, Skipped, Refused uint64
	// Needed is what the state needs, in bytes, when it did not fit.
	Needed uint64
}

const (
	flagAttached = 1
	flagRestored = 2
)

// Encode returns the client record.
func (c Client) Encode() []byte {
	b := newRecord(magicClient)
	var flags uint32
	if c.Attached {
		flags |= flagAttached
	}
	if c.Restored {
		flags |= flagRestored
	}
	le.PutUint32(b[12:], c.Slot)
	le.PutUint64(b[16:], c.Seq)
	le.PutUint64(b[24:], uint64(c.Generation))
	le.PutUint64(b[32:], c.Grant)
	le.PutUint64(b[40:], uint64(c.CopyStep))
	le.PutUint64(b[48:], c.Length)
	le.PutUint64(b[56:], uint64(c.Step))
	le.PutUint64(b[64:], uint64(c.RestoredStep))
	le.PutUint32(b[72:], c.PID)
	le.PutUint32(b[76:], flags)
	le.PutUint64(b[80:], c.Saves)
	le.PutUint64(b[88:], c.Skipped)
	le.PutUint64(b[96:], c.Needed)
	le.PutUint64(b[104:], c.Refused)
	return seal(b)
}

func decodeClientRecord(b []byte) (Client, error) {
	if err := check(b, magicClient); err != nil {
		return Client{}, err
	}
	flags := le.Uint32(b[76:])
	return Client{
		Slot:         le.Uint32(b[12:]),
		Seq:          le.Uint64(b[16:]),
		Generation:   int64(le.Uint64(b[24:])),
		Grant:        le.Uint64(b[32:]),
		CopyStep:     int64(le.Uint64(b[40:])),
		Length:       le.Uint64(b[48:]),
		Step:         int64(le.Uint64(b[56:])),
		RestoredStep: int64(le.Uint64(b[64:])),
		PID:          le.Uint32(b[72:]),
		Attached:     flags&flagAttached != 0,
		Restored:     flags&flagRestored != 0,
		Saves:        le.Uint64(b[80:]),
		Skipped:      le.Uint64(b[88:]),
		Needed:       le.Uint64(b[96:]),
		Refused:      le.Uint64(b[104:]),
	}, nil
}

// DecodeClient reads the newer whole record of a client page.
func DecodeClient(page []byte) (Client, error) {
	c, err := newer(page, decodeClientRecord, func(c Client) uint64 { return c.Seq })
	if err != nil {
		return Client{}, fmt.Errorf("client page: %w", err)
	}
	return c, nil
}

// newer picks the whole record with the higher number of the two on a page.
func newer[T any](page []byte, decode func([]byte) (T, error), seq func(T) uint64) (T, error) {
	var none T
	if len(page) < secondRecord+RecordSize {
		return none, fmt.Errorf("%w: page of %d bytes", ErrTorn, len(page))
	}
	a, errA := decode(page)
	b, errB := decode(page[secondRecord:])
	switch {
	case errA != nil && errB != nil:
		return none, errA
	case errA != nil:
		return b, nil
	case errB != nil:
		return a, nil
	case seq(b) > seq(a):
		return b, nil
	default:
		return a, nil
	}
}

// recordOffset is where write number seq of a page with two records goes.
func recordOffset(page int64, seq uint64) int64 {
	if seq%2 == 0 {
		return page
	}
	return page + secondRecord
}

// SlotState says what a slot's data is worth.
type SlotState uint32

const (
	// SlotEmpty: nothing of use.
	SlotEmpty SlotState = 0
	// SlotGranted: the client may be writing; never to be read.
	SlotGranted SlotState = 1
	// SlotSealed: whole, as far as its checksum agrees.
	SlotSealed SlotState = 2
)

// Slot is the header of one slot.
type Slot struct {
	State      SlotState
	Grant      uint64
	Generation int64
	// Step, Length, CRC and SealedAt (Unix nanoseconds) are set in sealed slots only.
	Step     int64
	Length   uint64
	CRC      uint32
	SealedAt int64
}

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
	return seal(b)
}

// DecodeSlot reads a slot header.
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
	if s.State > SlotSealed {
		return Slot{}, fmt.Errorf("slot header: %w: state %d", ErrVersion, s.State)
	}
	return s, nil
}
