package format

import (
	"errors"
	"slices"
	"testing"
)

func TestFileNames(t *testing.T) {
	for name, want := range map[string]struct {
		kind FileKind
		step int64
	}{
		"step-12.rank-3":                   {FileRank, 12},
		"step-12.manifest.json":            {FileManifest, 12},
		"step-12.rank-3.uid-1.part":        {FilePart, 12},
		"step-12.manifest.json.uid-1.part": {FilePart, 12},
		"step-012.rank-3":                  {},
		"step-12.dcp":                      {FileIndex, 12},
		"step-012.dcp":                     {},
		"step-12.dcp.uid-1.part":           {},
		"step-12.rank-03":                  {},
		"step-12.rank--3":                  {},
		"step-12.rank-3.part":              {}, // without a writer
		"step-12":                          {},
		"step-.rank-1":                     {},
		"probe-uid.part":                   {},
		"readme":                           {},
	} {
		if kind, step := ParseFileName(name); kind != want.kind || step != want.step {
			t.Errorf("%s is kind %d of step %d, want %+v", name, kind, step, want)
		}
	}
	for name, want := range map[string]bool{"gen-7": true, "gen-07": false, "gen-": false, "gen-x": false, "Gen-7": false} {
		if _, ok := ParseGenerationFolder(name); ok != want {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

func TestRankFileAndManifest(t *testing.T) {
	f := RankFile{Rank: 3, WorldSize: 8, Step: 12, Generation: 4, Branch: 5, Length: 99, Checksum: 7}
	whole := f.Encode()
	if got, err := DecodeRankFile(whole); err != nil || got != f {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range rankFileHead {
		damaged := slices.Clone(whole)
		damaged[i] ^= 0x40
		if _, err := DecodeRankFile(damaged); err == nil {
			t.Fatalf("byte %d changed and was not detected", i)
		}
	}
	m := Manifest{Step: 12, Generation: 4, Ranks: []ManifestRank{{9, 1}, {8, 2}}}
	for _, branch := range []int64{0, 5} {
		m.Branch = branch
		if got, err := DecodeManifest(m.Encode()); err != nil || got.Step != 12 || got.Generation != 4 || got.Branch != branch ||
			!slices.Equal(got.Ranks, m.Ranks) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	text := m.Encode()
	for cut := range len(text) - 1 { // without its last newline the text is still complete
		if _, err := DecodeManifest(text[:cut]); err == nil {
			t.Fatalf("%d of %d bytes read as a manifest", cut, len(text))
		}
	}
	for _, version := range []string{"0", "2"} {
		if _, err := DecodeManifest([]byte(`{"version":` + version + `,"step":1,"generation":1,"ranks":[{}]}`)); !errors.Is(err, ErrVersion) {
			t.Errorf("version %s: %v", version, err)
		}
		head := slices.Clone(whole[:rankFileHead])
		head[8] = version[0] - '0'
		if _, err := DecodeRankFile(seal(head)); !errors.Is(err, ErrVersion) {
			t.Errorf("version %s: %v", version, err)
		}
	}
}
