//go:build linux

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// folders returns a folder on a disk, which is written past the page cache, and one in memory, for which older kernels refuse that.
func folders(t *testing.T) map[string]string {
	memory, err := os.MkdirTemp("/dev/shm", "store-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(memory) })
	disk, err := os.MkdirTemp("/var/tmp", "store-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(disk) })
	return map[string]string{"disk": disk, "memory": memory}
}

// Data of lengths near the chunk size is read back unchanged from real file systems, whether it is written in large parts or byte by byte.
// If the data does not match its header, no file is left.
func TestRealFolders(t *testing.T) {
	for name, dir := range folders(t) {
		for i, length := range []int{
			0,
			1,
			block - 1,
			block,
			block + 1,
			chunk - block - 1,
			chunk - block,
			chunk - block + 1,
			2*chunk - block,
			3*chunk + 5,
		} {
			t.Run(fmt.Sprintf("%s/%d", name, length), func(t *testing.T) {
				s, data := newStore(OS{}, filepath.Join(dir, "job"), "w"), make([]byte, length)
				for at := range data {
					data[at] = byte(at>>12 + at*7)
				}
				m := protocol.Mark{Step: int64(i + 1), Generation: 1}
				f := format.RankFile{WorldSize: 1, Step: m.Step, Generation: 1, Length: uint64(length), Checksum: format.Checksum(data)}
				for what, wrong := range map[string]io.Reader{
					"longer":     bytes.NewReader(append(bytes.Clone(data), 1)),
					"shorter":    bytes.NewReader(data[:max(length-1, 0)]),
					"other":      bytes.NewReader(bytes.Repeat([]byte{3}, length)),
					"unreadable": iotest.ErrReader(unix.EIO),
				} {
					if length == 0 && (what == "shorter" || what == "other") {
						continue
					}
					if err := s.Put(context.Background(), f, wrong); err == nil || what != "unreadable" && !errors.Is(err, ErrChanged) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if left, err := (OS{}).List(filepath.Join(dir, "job", "gen-1")); err != nil || len(left) != i {
					t.Errorf("left behind: %v, %v; want %d files", left, err, i)
				}
				var reader io.Reader = bytes.NewReader(data)
				if length < 2*block {
					reader = iotest.OneByteReader(reader)
				}
				if err := s.Put(context.Background(), f, reader); err != nil {
					t.Fatal(err)
				}
				var got bytes.Buffer
				if _, err := s.Get(context.Background(), m, 0, func(format.RankFile) (io.Writer, error) { return &got, nil }); err != nil ||
					!bytes.Equal(got.Bytes(), data) {
					t.Errorf("it came back as %d bytes: %v", got.Len(), err)
				}
			})
		}
	}
}

// On a disk aligned data bypasses the page cache. Other data, and all data after it, goes through the cache.
func TestPastThePageCache(t *testing.T) {
	f, err := OS{}.Create(filepath.Join(folders(t)["disk"], "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file := f.(*osFile)
	if !file.direct {
		t.Fatal("the file goes through the cache from the start: is /var/tmp on a disk?")
	}
	whole := aligned(2 * block)
	if at := uintptr(unsafe.Pointer(&whole[0])); at%block != 0 {
		t.Fatalf("memory begins at %x", at)
	}
	for _, step := range []struct {
		part   []byte
		at     int64
		cached int
	}{{whole, block, 0}, {whole[:block], 0, 0}, {whole[:block+3], 3 * block, 3}, {whole, 4*block + 3, 3 + 2*block}} {
		n, err := f.WriteAt(step.part, step.at)
		if n != len(step.part) || err != nil || file.cached != step.cached || file.direct != (step.cached == 0) {
			t.Errorf("%d bytes: wrote %d, %v; %d in the cache, past it: %t", len(step.part), n, err, file.cached, file.direct)
		}
	}
	if err := f.Sync(); err != nil || file.cached != 0 {
		t.Errorf("%v, %d in the cache", err, file.cached)
	}
	if info, err := file.file.Stat(); err != nil || info.Size() != 6*block+3 {
		t.Errorf("the file has %v, %v", info, err)
	}
}

// A copy ends when its context is cancelled.
func TestPutEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	reads := 0
	data := readerFunc(func(p []byte) (int, error) {
		if reads++; reads == 3 {
			cancel()
		}
		return len(p), nil
	})
	s := newStore(OS{}, filepath.Join(folders(t)["memory"], "job"), "w")
	if err := s.Put(ctx, format.RankFile{WorldSize: 1, Step: 1, Generation: 1, Length: 1 << 40}, data); !errors.Is(err, context.Canceled) ||
		reads > 6 {
		t.Errorf("%v after %d reads", err, reads)
	}
}

// TestStreams: however many drafts are begun, the data of few is read at a time, one that is dropped does not wait for its turn, and one
// that is written and not committed takes no turn from others.
func TestStreams(t *testing.T) {
	folder := filepath.Join(folders(t)["memory"], "job")
	synctest.Test(t, func(t *testing.T) {
		var reading atomic.Int32
		more := make(chan error)
		data := readerFunc(func([]byte) (int, error) {
			reading.Add(1)
			defer reading.Add(-1)
			return 0, <-more
		})
		s := newStore(OS{}, folder, "w")
		ctx, cancel := context.WithCancel(t.Context())
		var drafts []*Draft
		for rank := range uint32(Streams + 3) {
			drafts = append(drafts, s.Draft(ctx, format.RankFile{Rank: rank, WorldSize: 8, Step: 1, Generation: 1, Length: 1}, data))
		}
		synctest.Wait()
		if n := reading.Load(); n != Streams {
			t.Errorf("the data of %d is read, want %d", n, Streams)
		}
		more <- io.EOF
		more <- io.EOF
		synctest.Wait()
		if n := reading.Load(); n != Streams {
			t.Errorf("the data of %d is read after two have ended, want %d", n, Streams)
		}
		cancel()
		synctest.Wait() // the one that waits has ended
		for range Streams {
			more <- io.EOF
		}
		for _, d := range drafts {
			d.Drop()
		}
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
