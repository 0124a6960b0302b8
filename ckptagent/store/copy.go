//go:build linux

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"holdfast.dev/holdfast/ckptagent/format"
)

// block is the alignment of files, offsets and memory for writes without a copy in the kernel.
const block = 4096

// aligned returns memory that begins at a block.
func aligned(n int) []byte {
	b := make([]byte, n+block)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (block - 1)
	return b[skip : skip+n : skip+n]
}

// Copier is a file that another process writes from a source file.
type Copier interface {
	File
	// CopyFrom writes n bytes of the file from at offset at, and returns the checksum of earlier data with checksum sum, followed by these
	// bytes. It may return before they are written, as Write may: later calls return the error.
	CopyFrom(from string, at int64, n int, sum uint32) (uint32, error)
}

// writeRank writes header and data without a sync. The error is ErrChanged if data does not match the header.
func writeRank(ctx context.Context, out File, f format.RankFile, data io.Reader) error {
	if to, ok := out.(Copier); ok {
		if from, at, ok := placeOf(data, f.Length); ok {
			return copyRank(ctx, to, f, from, at)
		}
	}
	return writeParts(ctx, out, f, data)
}

// placeOf returns file and offset of data, if data is a complete section of a file that other processes can open by name.
func placeOf(data io.Reader, length uint64) (name string, at int64, ok bool) {
	section, ok := data.(*io.SectionReader)
	if !ok || uint64(section.Size()) != length {
		return "", 0, false
	}
	under, at, _ := section.Outer()
	file, ok := under.(*os.File)
	if !ok || !filepath.IsAbs(file.Name()) {
		return "", 0, false
	}
	mine, err := file.Stat()
	named, lost := os.Stat(file.Name())
	return file.Name(), at, err == nil && lost == nil && os.SameFile(mine, named)
}

// copyRank writes header and data in chunks through a Copier. The checksum covers exactly the bytes that are written.
func copyRank(ctx context.Context, to Copier, f format.RankFile, from string, at int64) error {
	head := aligned(format.RankFileData)
	copy(head, f.Encode())
	if _, err := to.Write(head); err != nil {
		return err
	}
	sum, end := uint32(0), at+int64(f.Length)
	for at < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := int(min(chunk, end-at)), error(nil)
		if sum, err = to.CopyFrom(from, at, n, sum); err != nil {
			return err
		}
		at += int64(n)
	}
	if sum != f.Checksum {
		return ErrChanged
	}
	return ctx.Err()
}

// writeParts writes header and data in chunks at multiples of the chunk size.
func writeParts(ctx context.Context, out io.Writer, f format.RankFile, data io.Reader) error {
	sum, done, head := format.NewChecksum(), uint64(0), f.Encode()
	buf := aligned(int(min(chunk, format.RankFileData+f.Length+1)))
	for ended := false; !ended; {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := copy(buf, head)
		n, err := io.ReadFull(data, buf[at:]) // checksummed and written from the same buffer
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
