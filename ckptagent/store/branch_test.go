//go:build linux

package store

import (
	"bytes"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

// TestRemovalKnowsMarksOfBranches: an order to remove names the steps that stay with their branches. Files in storage are found by step and
// generation.
func TestRemovalKnowsMarksOfBranches(t *testing.T) {
	s := newStore(OS{}, t.TempDir(), "a")
	first, older, newer := protocol.Mark{
		Step:       80,
		Generation: 1,
	}, protocol.Mark{
		Step:       55,
		Generation: 2,
		Branch:     1,
	}, protocol.Mark{
		Step:       60,
		Generation: 2,
		Branch:     1,
	}
	for _, m := range []protocol.Mark{first, older, newer} {
		all := manifestOf(m)
		all.Branch = m.Branch
		for rank := range uint32(2) {
			f := fileOf(m, rank)
			f.Branch = m.Branch
			if err := s.Put(t.Context(), f, bytes.NewReader(content(m, rank))); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.PutManifest(all); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		below protocol.Mark
		kept  []protocol.Mark
		stay  []protocol.Mark
	}{
		{newer, []protocol.Mark{newer, older, first}, []protocol.Mark{first, older, newer}},
		{newer, []protocol.Mark{newer, older}, []protocol.Mark{older, newer}},
	} {
		if err := s.PruneBelow(c.below, c.kept...); err != nil {
			t.Fatal(err)
		}
		for i := range c.stay {
			c.stay[i].Branch = 0 // folder and file names have no branch
		}
		if got, err := s.Complete(); err != nil || !slices.Equal(got, c.stay) {
			t.Errorf("below %+v but for %+v: %+v, %v", c.below, c.kept, got, err)
		}
	}
}

// TestManifestIsOfTheBranchOfItsFiles: a manifest without a branch gets that of its files. A manifest of another branch is refused, and so
// are files of several branches.
func TestManifestIsOfTheBranchOfItsFiles(t *testing.T) {
	m := protocol.Mark{Step: 60, Generation: 2}
	for _, c := range []struct {
		files [2]int64
		named int64
		want  int64
		ok    bool
	}{
		{[2]int64{1, 1}, 1, 1, true},
		{[2]int64{1, 1}, 0, 1, true},
		{[2]int64{1, 1}, 2, 0, false},
		{[2]int64{1, 2}, 0, 0, false},
		{[2]int64{0, 1}, 0, 0, false},
		{[2]int64{0, 0}, 0, 0, true},
	} {
		s := newStore(OS{}, t.TempDir(), "a")
		for rank := range uint32(2) {
			f := fileOf(m, rank)
			f.Branch = c.files[rank]
			if err := s.Put(t.Context(), f, bytes.NewReader(content(m, rank))); err != nil {
				t.Fatal(err)
			}
		}
		all := manifestOf(m)
		all.Branch = c.named
		if err := s.PutManifest(all); (err == nil) != c.ok {
			t.Errorf("files of %v, named %d: %v", c.files, c.named, err)
		} else if got, err := s.Manifest(m); c.ok && (err != nil || got.Branch != c.want) {
			t.Errorf("files of %v, named %d: %+v, %v", c.files, c.named, got, err)
		}
	}
}
