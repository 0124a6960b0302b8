package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
)

// ErrTorn says that a record is not whole: never written, cut while being written, or damaged.
var ErrTorn = errors.New("record is not whole")

// ErrVersion says that a record is whole but of a version that this build does not know.
var ErrVersion = errors.New("unknown format version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewChecksum computes the CRC32C of data that is read piece by piece.
func NewChecksum() hash.Hash32 { return crc32.New(castagnoli) }

// Checksum is the CRC32C of data.
func Checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

const (
	magicHeader  = "HOLDFAST"
	magicControl = "HFCONTRL"
	magicClient  = "HFCLIENT"
	magicSlot    = "HFSLOTHD"
)

var le = binary.LittleEndian

// newRecord returns a record that has magic and version; seal adds the checksum.
func newRecord(magic string) []byte {
	b := make([]byte, RecordSize)
	copy(b, magic)
	le.PutUint32(b[8:], Version)
	return b
}

func seal(b []byte) []byte {
	le.PutUint32(b[RecordSize-4:], Checksum(b[:RecordSize-4]))
	return b
}

// check says whether b starts with a whole record of the given kind.
func check(b []byte, magic string) error { return checkVersion(b, magic, Version) }

// checkVersion is check for a format with a version of its own.
func checkVersion(b []byte, magic string, version uint32) error {
	if len(b) < RecordSize {
		return fmt.Errorf("%w: %d bytes, want %d", ErrTorn, len(b), RecordSize)
	}
	if string(b[:8]) != magic {
		return fmt.Errorf("%w: magic %q, want %q", ErrTorn, b[:8], magic)
	}
	if got, want := Checksum(b[:RecordSize-4]), le.Uint32(b[RecordSize-4:]); got != want {
		return fmt.Errorf("%w: checksum %08x, want %08x", ErrTorn, got, want)
	}
	if v := le.Uint32(b[8:]); v != version {
		return fmt.Errorf("%w: %d, this build knows %d", ErrVersion, v, version)
	}
	return nil
}
