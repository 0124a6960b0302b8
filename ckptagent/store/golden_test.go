//go:build linux

package store

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/golden"
)

// TestGoldenJob writes a state of the Python client as two ranks of one step, once of the first branch and once of a later one. Tests of
// the client export the same files.
func TestGoldenJob(t *testing.T) {
	for folder, branch := range map[string]int64{"job-uid": 0, "branch-uid": 2} {
		writeGoldenStep(t, folder, branch)
	}
}

func writeGoldenStep(t *testing.T, folder string, branch int64) {
	t.Helper()
	mem, err := os.ReadFile(filepath.Join("..", "format", "testdata", "python.arena"))
	if err != nil {
		t.Fatal(err)
	}
	book, err := format.Open(mem[:format.MetaBytes])
	if err != nil {
		t.Fatal(err)
	}
	c, err := format.DecodeClient(mem[format.ClientOffset : format.ClientOffset+format.PageSize])
	if err != nil {
		t.Fatal(err)
	}
	announced, ok := book.Announced(c)
	if !ok {
		t.Fatal("the arena announces no copy")
	}
	data := mem[announced.Offset : announced.Offset+int64(announced.Length)]

	dir := t.TempDir()
	s := New(OS{}, dir, "test")
	m := format.Manifest{Step: announced.Step, Generation: 7, Branch: branch}
	for rank := range uint32(2) {
		f := format.RankFile{
			Rank:       rank,
			WorldSize:  2,
			Step:       m.Step,
			Generation: m.Generation,
			Branch:     branch,
			Length:     uint64(len(data)),
			Checksum:   format.Checksum(data),
		}
		if err := s.Put(context.Background(), f, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		m.Ranks = append(m.Ranks, format.ManifestRank{Length: f.Length, Checksum: f.Checksum})
	}
	if err := s.PutManifest(m); err != nil {
		t.Fatal(err)
	}
	written, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(written) != 3 {
		t.Fatalf("the store wrote %v: %v", written, err)
	}
	for _, file := range written {
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			t.Fatal(err)
		}
		golden.File(t, filepath.Join("testdata", folder, name), string(got))
	}
}
