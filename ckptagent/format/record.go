package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
)

// ErrTorn is returned for an incomplete record: never written, partly written, or damaged.
var ErrTorn = errors.New("record is not whole")

// ErrVersion is returned for a complete record of an unknown version.
var ErrVersion = errors.New("unknown format version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewChecksum computes the CRC32C of data read in pieces.
func NewChecksum() hash.Hash32 { return crc32.New(castagnoli) }

// AddChecksum returns the CRC32C of earlier data with checksum sum (0: no data), followed by data.
func AddChecksum(sum uint32, data []byte) uint32 { return crc32.Update(sum, castagnoli, data) }

// Checksum returns the CRC32C of data.
func Checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// JoinChecksums returns the CRC32C of two consecutive pieces of data from their checksums; the second has n bytes.
func JoinChecksums(first, second uint32, n uint64) uint32 {
	// A checksum is a polynomial over GF(2) modulo the generator; the loop multiplies it by x^(8n).
	power, factor := uint32(1)<<31, uint32(1)<<23 // 1 and x^8: the highest bit is x^0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			power = times(power, factor)
		}
		factor = times(factor, factor)
	}
	return times(first, power) ^ second
}

// times multiplies two polynomials modulo the generator of CRC32C.
func times(a, b uint32) (product uint32) {
	for bit := uint32(1) << 31; bit > 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		b = b>>1 ^ -(b&1)&crc32.Castagnoli
	}
	return product
}

const (
	magicHeader  = "HOLDFAST"
	magicControl = "HFCONTRL"
	magicClient  = "HFCLIENT"
	magicSlot    = "HFSLOTHD"
)

var le = binary.LittleEndian

// newRecord returns a record with magic and version; seal adds the checksum.
func newRecord(magic string) []byte {
	b := make([]byte, RecordSize)
	copy(b, magic)
	le.PutUint32(b[8:], Version)
	return b
}

// seal writes the checksum at the end of a record.
func seal(b []byte) []byte {
	end := len(b) - 4
	le.PutUint32(b[end:], Checksum(b[:end]))
	return b
}

// check returns an error unless b starts with a complete record of the given kind.
func check(b []byte, magic string) error {
	if len(b) < RecordSize {
		return fmt.Errorf("%w: %d bytes, want %d", ErrTorn, len(b), RecordSize)
	}
	if string(b[:8]) != magic {
		return fmt.Errorf("%w: magic %q, want %q", ErrTorn, b[:8], magic)
	}
	if err := checkSum(b, RecordSize); err != nil {
		return err
	}
	if version := le.Uint32(b[8:]); version != Version {
		return fmt.Errorf("%w: %d, this build knows %d", ErrVersion, version, Version)
	}
	return nil
}

func checkSum(b []byte, size int) error {
	if len(b) < size {
		return fmt.Errorf("%w: %d bytes, want %d", ErrTorn, len(b), size)
	}
	if got, want := Checksum(b[:size-4]), le.Uint32(b[size-4:]); got != want {
		return fmt.Errorf("%w: checksum %08x, want %08x", ErrTorn, got, want)
	}
	return nil
}
