//go:build linux

package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestDirectWritesArePassedOn: a file system in user space may open files with the caller's flags, so that writes bypass the page cache.
// Then unaligned writes fail as long as a file is open with O_DIRECT. The store must still write files of any length.
func TestDirectWritesArePassedOn(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); os.Geteuid() != 0 || errors.Is(err, os.ErrNotExist) {
		t.Skipf("SKIPPED: a file system that is a process: it needs root and /dev/fuse (%v)", err)
	}
	t.Setenv("TMPDIR", "/var/tmp") // on a disk: a file system in memory accepts unaligned writes
	s := store.New(store.OS{}, filepath.Join(newFaultyFolder(t).mount, "job"), "w")
	if err := s.Probe(); err != nil {
		t.Error(err)
	}
	for i, length := range []int{1, 4096, 3*4096 + 5, 5<<20 + 1} {
		data := bytes.Repeat([]byte("holdfast"), length/8+1)[:length]
		m := protocol.Mark{Step: int64(i + 1), Generation: 1}
		f := format.RankFile{WorldSize: 1, Step: m.Step, Generation: 1, Length: uint64(length), Checksum: format.Checksum(data)}
		if err := s.Put(context.Background(), f, bytes.NewReader(data)); err != nil {
			t.Errorf("%d bytes: %v", length, err)
			continue
		}
		var got bytes.Buffer
		if _, err := s.Get(context.Background(), m, 0, func(format.RankFile) (io.Writer, error) { return &got, nil }); err != nil ||
			!bytes.Equal(got.Bytes(), data) {
			t.Errorf("%d bytes came back as %d, %v", length, got.Len(), err)
		}
		if err := s.PutManifest(format.Manifest{
			Step:       m.Step,
			Generation: 1,
			Ranks:      []format.ManifestRank{{Length: f.Length, Checksum: f.Checksum}},
		}); err != nil {
			t.Error(err)
		}
	}
}
