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

// piece is how much of a rank's file is in memory while it is written: two of these, one being filled.
const piece = 4 << 20

// aligned makes memory that begins at a block.
func aligned(n int) []byte {
	b := make([]byte, n+block)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (block - 1)
	return b[skip : skip+n : skip+n]
}

// filled is a part of a rank's file, as it is to be written, and what keeps the next one from being had.
type filled struct {
	part []byte
	err  error
}

// writeRank writes header and data, and syncs nothing. While one part is written the next one is copied and checksummed, so that a disk
// that is as quick as a core does not wait. The error is ErrChanged where data is not what the header says.
func writeRank(ctx context.Context, out io.Writer, f format.RankFile, data io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	parts, free := make(chan filled), make(chan []byte, 2)
	size := int(min(piece, f.Length+format.RankFileData+1))
	free <- aligned(size)
	free <- aligned(size)
	go func() {
		defer close(parts)
		fillParts(ctx, f, data, parts, free)
	}()
	defer func() { // nothing reads data any more when this returns
		cancel()
		for range parts {
		}
	}()
	for p := range parts {
		if len(p.part) > 0 {
			if _, err := out.Write(p.part); err != nil {
				return err
			}
		}
		if p.err != nil {
			return p.err
		}
		free <- p.part[:size]
	}
	return ctx.Err()
}

// fillParts gives the file in parts until data ends, is longer than it may be, or ctx is done.
func fillParts(ctx context.Context, f format.RankFile, data io.Reader, parts chan<- filled, free <-chan []byte) {
	sum, done, head := format.NewChecksum(), uint64(0), f.Encode()
	for {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			return
		}
		at := copy(buf, head)
		n, err := io.ReadFull(data, buf[at:]) // what is checksummed is what is written, whatever becomes of data
		_, _ = sum.Write(buf[at : at+n])
		done, head = done+uint64(n), nil
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		p := filled{part: buf[:at+n]}
		switch {
		case err != nil && !ended:
			p.err = fmt.Errorf("reading the state in memory: %w", err)
		case done > f.Length || ended && (done != f.Length || sum.Sum32() != f.Checksum):
			p.err = ErrChanged
		}
		select {
		case parts <- p:
		case <-ctx.Done():
			return
		}
		if ended || p.err != nil {
			return
		}
	}
}
