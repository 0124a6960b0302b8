package format

import (
	"bytes"
	"fmt"
)

// Header describes an arena; it never changes.
type Header struct {
	// Slots is 2 or 3; 0 in a new one: 3.
	Slots      uint32
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
	le.PutUint32(b[12:], h.Slots)
	le.PutUint32(b[16:], PageSize)
	le.PutUint32(b[20:], h.LocalRank)
	le.PutUint64(b[24:], h.StateBytes)
	le.PutUint64(b[32:], MetaBytes)
	le.PutUint64(b[40:], Stride(h.StateBytes))
	le.PutUint64(b[48:], uint64(h.CreatedAt))
	copy(b[56:96], h.PodUID)
	return seal(b)
}

// DecodeHeader decodes the record that starts an arena.
func DecodeHeader(b []byte) (Header, error) {
	if err := check(b, magicHeader); err != nil {
		return Header{}, fmt.Errorf("arena header: %w", err)
	}
	h := Header{
		Slots:      le.Uint32(b[12:]),
		LocalRank:  le.Uint32(b[20:]),
		StateBytes: le.Uint64(b[24:]),
		CreatedAt:  int64(le.Uint64(b[48:])),
		PodUID:     string(bytes.TrimRight(b[56:96], "\x00")),
	}
	if h.Slots != Slots && h.Slots != MinSlots || le.Uint32(b[16:]) != PageSize ||
		le.Uint64(b[32:]) != MetaBytes || le.Uint64(b[40:]) != Stride(h.StateBytes) {
		return Header{}, fmt.Errorf("arena header: %w: its geometry is not that of version %d", ErrVersion, Version)
	}
	return h, nil
}

// Control is what the agent writes for the client.
type Control struct {
	// Seq numbers the agent's writes of this page.
	Seq uint64
	// Slot may be written by processes of Generation under Grant; NoSlot: none may.
	Slot       uint32
	Generation int64
	Grant      uint64
	// CommonStep and ReclaimBelow are the coordinator's levels, for inspection by users.
	CommonStep, ReclaimBelow int64
	// BarrierStep: a client stays in its first save of a step at or above it; 0: none stays.
	BarrierStep int64
	// Branch is the generation's branch.
	Branch int64
	// DurableStep of DurableBranch is the newest step on this generation's line that is complete in storage and recorded; 0: none.
	DurableStep, DurableBranch int64
	// ReplicatedStep of ReplicatedBranch is the newest that another node's memory also holds; 0: none.
	ReplicatedStep, ReplicatedBranch int64
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
	le.PutUint64(b[64:], uint64(c.Branch))
	le.PutUint64(b[80:], uint64(c.DurableBranch))
	le.PutUint64(b[88:], uint64(c.ReplicatedStep))
	le.PutUint64(b[96:], uint64(c.ReplicatedBranch))
	return seal(b)
}

func decodeControlRecord(b []byte) (Control, error) {
	if err := check(b, magicControl); err != nil {
		return Control{}, err
	}
	c := Control{
		Slot:         le.Uint32(b[12:]),
		Seq:          le.Uint64(b[16:]),
		Generation:   int64(le.Uint64(b[24:])),
		Grant:        le.Uint64(b[32:]),
		CommonStep:   int64(le.Uint64(b[40:])),
		ReclaimBelow: int64(le.Uint64(b[48:])),
		BarrierStep:  int64(le.Uint64(b[56:])),
		DurableStep:  int64(le.Uint64(b[72:])),
	}
	c.Branch = int64(le.Uint64(b[64:]))
	c.DurableBranch = int64(le.Uint64(b[80:]))
	c.ReplicatedStep = int64(le.Uint64(b[88:]))
	c.ReplicatedBranch = int64(le.Uint64(b[96:]))
	return c, nil
}

// DecodeControl returns the newer complete record of a control page.
func DecodeControl(page []byte) (Control, error) {
	c, err := newer(page, decodeControlRecord, func(c Control) uint64 { return c.Seq })
	if err != nil {
		return Control{}, fmt.Errorf("control page: %w", err)
	}
	return c, nil
}

// newer returns, of a page's two records, the complete one with the higher number.
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

// recordOffset returns where write number seq goes on a page with two records.
func recordOffset(page int64, seq uint64) int64 {
	if seq%2 == 0 {
		return page
	}
	return page + secondRecord
}
