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
	// CopyFrom writes n bytes of the file from, beginning at offset at, to offset to, and returns their checksum.
	CopyFrom(ctx context.Context, from string, at, n, to int64) (sum uint32, err error)
}

// writeData writes the data of a rank file without a sync, and returns its checksum, which covers exactly the bytes that are written. The
// error is ErrChanged if data does not have that length.
func writeData(ctx context.Context, out File, length uint64, data io.Reader) (uint32, error) {
	if to, ok := out.(Copier); ok {
		if from, at, ok := placeOf(data, length); ok {
			return to.CopyFrom(ctx, from, at, int64(length), format.RankFileData)
		}
	}
	sum, buf := uint32(0), aligned(int(min(chunk, length+1)))
	for done := uint64(0); ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := io.ReadFull(data, buf)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return 0, fmt.Errorf("reading the state in memory: %w", err)
		}
		if end := done + uint64(n); end > length || ended && end != length {
			return 0, ErrChanged
		}
		if sum = format.AddChecksum(sum, buf[:n]); n > 0 {
			if _, err := out.WriteAt(buf[:n], format.RankFileData+int64(done)); err != nil {
				return 0, err
			}
		}
		if done += uint64(n); ended {
			return sum, ctx.Err()
		}
	}
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
