package format

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// damages are the values by which a byte is changed.
var damages = []byte{0x01, 0x03, 0x80, 0xff}

// TestEveryDamagedByteOfTheMetadata changes each byte before the data, in arenas of three and two slots and at every point of a save. After
// a change in the header the arena is re-created. A changed record counts as torn: of a page with two records the older one counts, and a
// slot is not sealed. Other changes have no effect. No grant is opened twice.
func TestEveryDamagedByteOfTheMetadata(t *testing.T) {
	for _, slots := range []uint32{Slots, MinSlots} {
		for name, mem := range goldenArenas(slots) {
			all := name == "full" // of other points of a save only the records
			if name == "torn" || name == "barrier" || name == "durable" || !all && slots != Slots {
				continue // the first three already have torn records
			}
			was := readAll(t, mem)
			for at := range MetaBytes {
				changes := damages
				if at%secondRecord >= RecordSize { // no record has it
					if changes = damages[:1]; !all {
						continue
					}
				}
				for _, x := range changes {
					mem[at] ^= x
					if err := was.compare(mem, at); err != nil {
						t.Fatalf("%d slots, %s: byte %d is changed by %02x: %v", slots, name, at, x, err)
					}
					mem[at] ^= x
				}
			}
		}
	}
}

// readings has what is read from an arena.
type readings struct {
	book     *Book
	older    []Control // what may be read if the newest control record is torn
	client   Client
	clients  []Client
	copied   Copy
	isCopied bool
	grant    uint64 // the highest grant that any client has seen
}

func readAll(t *testing.T, mem []byte) readings {
	t.Helper()
	b, err := Open(mem[:MetaBytes])
	if err != nil {
		t.Fatal(err)
	}
	r := readings{book: b, grant: b.Control.Grant, older: []Control{b.Control, {}}}
	r.client, _ = DecodeClient(mem[ClientOffset : ClientOffset+PageSize])
	r.copied, r.isCopied = b.Announced(r.client)
	for _, at := range []int{0, secondRecord} {
		if c, err := decodeControlRecord(mem[ControlOffset+at:]); err == nil {
			r.older = append(r.older, c)
		}
		if c, err := decodeClientRecord(mem[ClientOffset+at:]); err == nil {
			r.clients = append(r.clients, c)
		}
	}
	return r
}

// compare returns an error if an arena whose byte at is damaged is read wrongly.
func (was readings) compare(mem []byte, at int) error {
	b, err := Open(mem[:MetaBytes])
	if inHeader := at < RecordSize; inHeader != (err != nil) {
		return fmt.Errorf("the arena is read as %v", err)
	} else if inHeader {
		if !errors.Is(err, ErrTorn) && !errors.Is(err, ErrVersion) {
			return fmt.Errorf("refused with %w", err)
		}
		return nil
	}
	for i, s := range b.Slot {
		of := int(SlotHeaderOffset(uint32(i)))
		if hit := at >= of && at < of+RecordSize; hit && s.State == SlotSealed || !hit && s != was.book.Slot[i] && !was.openAgain(s, i) {
			return fmt.Errorf("slot %d is read as %+v, it was %+v", i, s, was.book.Slot[i])
		}
	}
	if !slices.ContainsFunc(was.older, func(c Control) bool { return sameLevels(c, b.Control) }) {
		return fmt.Errorf("control is read as %+v, it was %+v", b.Control, was.book.Control)
	}
	c, err := DecodeClient(mem[ClientOffset : ClientOffset+PageSize])
	if err == nil && !slices.Contains(was.clients, c) {
		return fmt.Errorf("the client's page is read as %+v, it was %+v", c, was.client)
	}
	if inClient := at >= ClientOffset && at < ClientOffset+PageSize; err != nil && len(was.clients) > 0 &&
		!(inClient && len(was.clients) == 1) ||
		!inClient && c != was.client {
		return fmt.Errorf("the client's page is read as %+v, %w", c, err)
	}
	if copied, ok := b.Announced(c); ok && (!was.isCopied || copied != was.copied) {
		return fmt.Errorf("a copy is announced that was not: %+v", copied)
	}
	b.Begin(b.Control.Generation+1, b.Control.Branch, Point{Branch: b.Control.Branch, Step: b.Control.CommonStep})
	if b.Control.Slot != NoSlot && b.Control.Grant <= was.grant {
		return fmt.Errorf("grant %d is handed out again, %d was", b.Control.Grant, was.grant)
	}
	return nil
}

// openAgain reports whether a slot that only the newest control record names is empty because that record is torn.
func (was readings) openAgain(s Slot, i int) bool {
	return was.book.Slot[i].State == SlotGranted && s.State == SlotEmpty
}

// sameLevels reports whether two records of the agent are equal except for the grant, which the slot headers decide.
func sameLevels(a, b Control) bool {
	a.Slot, a.Grant, b.Slot, b.Grant = 0, 0, 0, 0
	return a == b
}

// TestEveryDamagedByteOfARankFile: the header is refused, or, if the byte belongs to no record, reads unchanged.
func TestEveryDamagedByteOfARankFile(t *testing.T) {
	whole := RankFile{Rank: 3, WorldSize: 8, Step: 120, Generation: 5, Length: 1 << 33, Checksum: 0xdeadbeef}.Encode()
	was, err := DecodeRankFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	end := len(bytes.TrimRight(whole, "\x00"))
	for at := range whole {
		for _, x := range damages {
			damaged := bytes.Clone(whole)
			damaged[at] ^= x
			f, err := DecodeRankFile(damaged)
			if at < end && err == nil {
				t.Fatalf("byte %d is changed by %02x: it reads as %+v", at, x, f)
			}
			if at >= rankFileHead && (err != nil || f != was) {
				t.Fatalf("byte %d is changed by %02x: it reads as %+v, %v", at, x, f, err)
			}
		}
	}
}
