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

// block is what files, offsets and memory are aligned to, so that the kernel can write from where data lies.
const block = 4096

// aligned makes memory that begins at a block.
func aligned(n int) []byte {
	b := make([]byte, n+block)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (block - 1)
	return b[skip : skip+n : skip+n]
}

// Copier is a file that can be written from another one without the help of the process that asks for it.
type Copier interface {
	File
	// CopyFrom writes n bytes that lie in the file named from at offset at, and returns the checksum of what has the checksum sum followed by
	// these. It may return before they are written, as Write may: later calls say what became of them.
	CopyFrom(from string, at int64, n int, sum uint32) (uint32, error)
}

// writeRank writes header and data, and syncs nothing. The error is ErrChanged where data is not what the header says.
func writeRank(ctx context.Context, out File, f format.RankFile, data io.Reader) error {
	if to, ok := out.(Copier); ok {
		if from, at, ok := placeOf(data, f.Length); ok {
			return copyRank(ctx, to, f, from, at)
		}
	}
	return writeParts(ctx, out, f, data)
}

// placeOf is where data lies, if it is all of a section of a file that others find by its name.
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

// copyRank has header and data written in parts of a chunk. What is checksummed is what is written, whatever becomes of the data.
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

// writeParts writes header and data in parts of a chunk, which begin at multiples of it.
func writeParts(ctx context.Context, out io.Writer, f format.RankFile, data io.Reader) error {
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
