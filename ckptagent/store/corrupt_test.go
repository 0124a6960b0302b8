//go:build linux && !race

package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestEveryDamagedByteInStorage: a rank file with a changed byte is not read, except if the byte is in the unused part of the header's
// page. A manifest with a changed byte is absent, unchanged in meaning, or does not match a rank file. A comparison of the two detects the
// latter, and no restore depends on the manifest, because the gang's record names the step.
func TestEveryDamagedByteInStorage(t *testing.T) {
	m := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
	s := newStore(m, jobFolder, "a")
	mark := protocol.Mark{Step: 120, Generation: 3}
	for rank := range uint32(2) {
		if err := put(s, mark, rank); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PutManifest(manifestOf(mark)); err != nil {
		t.Fatal(err)
	}
	file := m.now[jobFolder+"/gen-3/"+format.RankFileName(120, 1)]
	record := len(bytes.TrimRight(file.data[:format.RankFileData], "\x00"))
	for at := range file.data {
		for _, x := range []byte{1, 0x80, 0xff} {
			file.data[at] ^= x
			err := get(s, mark, 1)
			ignored := at >= record && at < format.RankFileData
			if ignored != (err == nil) || err != nil && !errors.Is(err, ErrUseless) {
				t.Fatalf("byte %d of a rank's file is changed by %02x: %v", at, x, err)
			}
			if err := s.PutManifest(manifestOf(mark)); at < record && err == nil {
				t.Fatalf("byte %d of a rank's file is changed by %02x, and a manifest names it", at, x)
			}
			file.data[at] ^= x
		}
	}
	was, err := s.Manifest(mark)
	if err != nil {
		t.Fatal(err)
	}
	file = m.now[jobFolder+"/gen-3/"+format.ManifestName(120)]
	for at := range file.data {
		for x := 1; x < 256; x++ {
			file.data[at] ^= byte(x)
			complete, err := s.Complete()
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(complete, mark) {
				now, err := s.Manifest(mark)
				now.Ranks, was.Ranks = slices.Clone(now.Ranks), slices.Clone(was.Ranks)
				if err != nil || now.Step != was.Step || now.Generation != was.Generation || len(now.Ranks) != len(was.Ranks) {
					t.Fatalf("byte %d of a manifest is changed by %02x: %+v, %v", at, x, now, err)
				}
			} else if len(complete) > 0 {
				t.Fatalf("byte %d of a manifest is changed by %02x: complete are %v", at, x, complete)
			}
			file.data[at] ^= byte(x)
		}
	}
}
