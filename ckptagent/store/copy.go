//go:build linux

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"holdfast.dev/holdfast/ckptagent/format"
)

// block is what files, offsets and memory are aligned to, so that the kernel can write from where data lies.
const block = 4096

// aligned makes memory that begins at a block.
func aligned(n int) []byte {
	b := make([]byte, n+block)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (block - 1)
	return b[skip : skip+n : skip+n]
}

// writeRank writes header and data in parts of a chunk, which begin at multiples of it, and syncs nothing. The error is ErrChanged where
// data is not what the header says.
func writeRank(ctx context.Context, out io.Writer, f format.RankFile, data io.Reader) error {
	sum, done, head := format.NewChecksum(), uint64(0), f.Encode()
	buf := aligned(int(min(chunk, format.RankFileData+f.Length+1)))
	for ended := false; !ended; {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := copy(buf, head)
		n, err := io.ReadFull(data, buf[at:]) // what is checksummed is what is written, whatever becomes of data
		ended = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return fmt.Errorf("reading the state in memory: %w", err)
		}
		_, _ = sum.Write(buf[at : at+n])
		done, head = done+uint64(n), nil
		if done > f.Length || ended && (done != f.Length || sum.Sum32() != f.Checksum) {
			return ErrChanged
		}
		if _, err := out.Write(buf[:at+n]); err != nil {
			return err
		}
	}
	return ctx.Err()
}
