//go:build linux

package inspect

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
)

// world is the number of ranks of the steps.
const world = 4

// data returns what a rank saved. Rank 1 saved more than is read at once.
func data(step int64, rank int) []byte {
	n := 1000
	if rank == 1 {
		n = 500_000
	}
	return bytes.Repeat([]byte{byte(step), byte(rank), 7}, n)
}

// of returns the total size of the files of these ranks.
func of(ranks ...int) (size int64) {
	for _, rank := range ranks {
		size += int64(format.RankFileData + len(data(0, rank)))
	}
	return size
}

// write writes a step of some ranks into a job's folder, as agents do. If all ranks are there it also writes the manifest.
func write(t *testing.T, dir string, generation, step int64, ranks ...int) {
	t.Helper()
	writeOf(t, dir, 0, generation, step, ranks...)
}

// writeOf does what write does, for a step of a branch.
func writeOf(t *testing.T, dir string, branch, generation, step int64, ranks ...int) {
	t.Helper()
	s := store.New(store.OS{}, dir, "w")
	m := format.Manifest{Step: step, Generation: generation, Branch: branch}
	for _, rank := range ranks {
		b := data(step, rank)
		f := format.RankFile{
			Rank:       uint32(rank),
			WorldSize:  world,
			Step:       step,
			Generation: generation,
			Branch:     branch,
			Length:     uint64(len(b)),
			Checksum:   format.Checksum(b),
		}
		if err := s.Put(t.Context(), f, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		m.Ranks = append(m.Ranks, format.ManifestRank{Length: f.Length, Checksum: f.Checksum})
	}
	if len(ranks) == world {
		if err := s.PutManifest(m); err != nil {
			t.Fatal(err)
		}
	}
}

// change rewrites a file of a job's folder.
func change(t *testing.T, name string, how func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, how(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lookAt inspects a folder, and fails the test if it cannot.
func lookAt(t *testing.T, dir string, o Options) Storage {
	t.Helper()
	s, err := Look(t.Context(), dir, o)
	if err != nil || s.Version != Version || s.Verified != o.Deep {
		t.Fatalf("%+v, %v", s, err)
	}
	return s
}

// only returns the one step that was found.
func only(t *testing.T, s Storage) Step {
	t.Helper()
	if len(s.Folders) != 1 || len(s.Folders[0].Steps) != 1 {
		t.Fatalf("%+v: not one step", s)
	}
	return s.Folders[0].Steps[0]
}

func TestWholeSteps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "train-uid")
	write(t, dir, 1, 20, 0, 1, 2, 3)
	write(t, dir, 2, 10, 0, 1, 2, 3)
	write(t, dir, 2, 30, 1, 3)
	whole := []Run{{Ranks: world, Status: OK, Bytes: of(0, 1, 2, 3)}}
	for _, deep := range []bool{false, true} {
		got := lookAt(t, dir, Options{Deep: deep})
		want := []Folder{{Name: "train-uid", Steps: []Step{
			{Step: 30, Generation: 2, Ranks: world, Bytes: of(1, 3), Manifest: Missing, Good: 2,
				Files: []Run{{Rank: 1, Ranks: 1, Status: OK, Bytes: of(1)}, {Rank: 3, Ranks: 1, Status: OK, Bytes: of(3)}}},
			{Step: 10, Generation: 2, Ranks: world, Bytes: of(0, 1, 2, 3), Manifest: OK, Good: world, Files: whole},
			{Step: 20, Generation: 1, Ranks: world, Bytes: of(0, 1, 2, 3), Manifest: OK, Good: world, Files: whole},
		}}}
		if !reflect.DeepEqual(got.Folders, want) || got.Notes != nil {
			t.Errorf("deep %v: got %+v\nwant %+v", deep, got, want)
		}
		s := got.Folders[0].Steps
		if s[0].Complete() || !s[1].Complete() || s[0].Has(0) || !s[0].Has(3) || s[0].Has(4) || !s[1].Has(0) {
			t.Errorf("which are complete: %+v", s)
		}
	}
	if got := only(t, lookAt(t, dir, Options{Step: 20})); got.Generation != 1 {
		t.Errorf("step 20 is %+v", got)
	}
	claim := filepath.Dir(dir)
	write(t, filepath.Join(claim, "other-uid"), 1, 5, 0, 1, 2, 3)
	if err := os.Mkdir(filepath.Join(claim, "datasets"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := lookAt(t, claim, Options{}); len(got.Folders) != 2 || got.Folders[0].Name != "other-uid" || len(got.Folders[1].Steps) != 3 {
		t.Errorf("of a claim: %+v", got)
	}
	if got := only(t, lookAt(t, claim, Options{Folder: "other-uid"})); got.Step != 5 {
		t.Errorf("of one folder: %+v", got)
	}
	if got := lookAt(t, claim, Options{Folder: "none-uid"}); len(got.Folders) != 0 {
		t.Errorf("of a folder that is not there: %+v", got)
	}
	if _, err := Look(t.Context(), filepath.Join(claim, "nothing"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no claim: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Look(ctx, dir, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("for a request that was cancelled: %v", err)
	}
}

// TestBranches: a step's branch is in its manifest or, without one, in the first header.
func TestBranches(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "train-uid")
	writeOf(t, dir, 2, 4, 30, 1, 2)
	writeOf(t, dir, 1, 3, 20, 0, 1, 2, 3)
	write(t, dir, 1, 10, 0, 1, 2, 3)
	var got []int64
	for _, s := range lookAt(t, dir, Options{}).Folders[0].Steps {
		if got = append(got, s.Branch); s.Bad > 0 {
			t.Errorf("step %d: %+v", s.Step, s)
		}
	}
	if !slices.Equal(got, []int64{2, 1, 0}) {
		t.Errorf("branches are %v", got)
	}
}

// TestEveryDamageIsNamed: in a complete step the file of rank 1 has one fault, which is reported. A fault in the data is reported only with
// Deep.
func TestEveryDamageIsNamed(t *testing.T) {
	other := data(8, 1)
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		status Status
		why    string
		deep   bool
	}{
		"a byte of the data":   {func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, WrongChecksum, "its header says", true},
		"the first byte of it": {func(b []byte) []byte { b[format.RankFileData] ^= 1; return b }, WrongChecksum, "its header says", true},
		"a byte of the header": {func(b []byte) []byte { b[20] ^= 1; return b }, Torn, "rank file", false},
		"cut":                  {func(b []byte) []byte { return b[:len(b)-1] }, Torn, "1499999 bytes of data, its header says 1500000", false},
		"longer":               {func(b []byte) []byte { return append(b, 0) }, Torn, "1500001 bytes of data", false},
		"cut in the header":    {func(b []byte) []byte { return b[:100] }, Torn, "100 bytes, shorter than its header of 4096", false},
		"empty":                {func([]byte) []byte { return nil }, Torn, "0 bytes", false},
		"of another version": {func(b []byte) []byte {
			b[8] = 9
			binary.LittleEndian.PutUint32(b[124:], format.Checksum(b[:124]))
			return b
		}, OtherVersion, "9, this build knows 1", false},
		"of another step": {func([]byte) []byte {
			f := format.RankFile{Rank: 1, WorldSize: world, Step: 8, Generation: 3, Length: uint64(len(other)), Checksum: format.Checksum(other)}
			return append(f.Encode(), other...)
		}, Mismatch, "its header says rank 1, step 8, generation 3", false},
		"of another branch": {func([]byte) []byte {
			b := data(7, 1)
			f := format.RankFile{Rank: 1, WorldSize: world, Step: 7, Generation: 3, Branch: 5, Length: uint64(len(b)), Checksum: format.Checksum(b)}
			return append(f.Encode(), b...)
		}, Mismatch, "its header says branch 5, the manifest 0", false},
		"another state of that step": {func([]byte) []byte {
			f := format.RankFile{Rank: 1, WorldSize: world, Step: 7, Generation: 3, Length: uint64(len(other)), Checksum: format.Checksum(other)}
			return append(f.Encode(), other...)
		}, Mismatch, "the manifest says", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "train-uid")
			write(t, dir, 3, 7, 0, 1, 2, 3)
			change(t, filepath.Join(dir, "gen-3", "step-7.rank-1"), c.damage)
			for _, deep := range []bool{false, true} {
				got := only(t, lookAt(t, dir, Options{Deep: deep}))
				if found := deep || !c.deep; got.Complete() == found {
					t.Errorf("deep %v: complete %v", deep, got.Complete())
				} else if !found {
					continue
				}
				if len(got.Files) != 3 || got.Files[1].Status != c.status || !strings.Contains(got.Files[1].Why, c.why) || got.Good != 3 ||
					got.Bad != 1 ||
					got.Has(1) ||
					!got.Has(2) {
					t.Errorf("deep %v: %+v; want %s: %s", deep, got, c.status, c.why)
				}
			}
		})
	}
}

func TestManifestsThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		status Status
		why    string
	}{
		"cut":                {func(b []byte) []byte { return b[:len(b)/2] }, Torn, "manifest"},
		"of another version": {func(b []byte) []byte { return bytes.Replace(b, []byte(`"version": 1`), []byte(`"version": 9`), 1) }, OtherVersion, "9, this build knows 1"},
		"of another step":    {func(b []byte) []byte { return bytes.Replace(b, []byte(`"step": 7`), []byte(`"step": 8`), 1) }, Mismatch, "it is of step 8"},
		"huge":               {func([]byte) []byte { return bytes.Repeat([]byte(" "), format.MaxManifest+1) }, Torn, "more than any manifest has"},
		"of very many":       {func([]byte) []byte { return bytes.Repeat([]byte("{},"), maxEntries+1) }, Torn, "it names more than"},
	} {
		dir := filepath.Join(t.TempDir(), "train-uid")
		write(t, dir, 3, 7, 0, 1, 2, 3)
		change(t, filepath.Join(dir, "gen-3", "step-7.manifest.json"), c.damage)
		got := only(t, lookAt(t, dir, Options{}))
		if got.Manifest != c.status || !strings.Contains(got.ManifestWhy, c.why) || got.Complete() || got.Good != world || got.Ranks != world {
			t.Errorf("%s: %+v", name, got)
		}
	}
	dir := filepath.Join(t.TempDir(), "train-uid")
	write(t, dir, 3, 7, 0, 1, 2, 3)
	b := data(7, 9)
	f := format.RankFile{Rank: 9, WorldSize: 10, Step: 7, Generation: 3, Length: uint64(len(b)), Checksum: format.Checksum(b)}
	if err := store.New(store.OS{}, dir, "w").Put(t.Context(), f, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "gen-3", "step-7.rank-2")); err != nil {
		t.Fatal(err)
	}
	got := only(t, lookAt(t, dir, Options{}))
	if len(got.Files) != 4 || got.Files[1].Status != Missing || got.Files[1].Rank != 2 || got.Files[3].Status != Mismatch ||
		got.Files[3].Why != "the manifest names 4 ranks" ||
		got.Complete() {
		t.Errorf("one rank is missing, one is too many: %+v", got)
	}
}

// TestNothingIsFollowed: links, pipes and folders with names of Holdfast are reported as not being files, and their targets are not read.
func TestNothingIsFollowed(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside-uid")
	write(t, outside, 3, 7, 0, 1, 2, 3)
	dir := filepath.Join(t.TempDir(), "train-uid")
	write(t, dir, 3, 7, 0, 1, 2, 3)
	at := func(rank int) string { return filepath.Join(dir, "gen-3", format.RankFileName(7, uint32(rank))) }
	for rank := range 3 {
		if err := os.Remove(at(rank)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(filepath.Join(outside, "gen-3", "step-7.rank-0"), at(0)), unix.Mkfifo(at(1), 0o600), os.Symlink("step-7.rank-3", at(2)),
		os.Symlink(filepath.Join(outside, "gen-3"), filepath.Join(dir, "gen-4")), os.Symlink(outside, filepath.Join(filepath.Dir(dir), "linked-uid")),
		os.WriteFile(filepath.Join(dir, "gen-3", "step-7.rank-0.w-1.part"), nil, 0o600), os.WriteFile(filepath.Join(dir, "gen-3", "not\x1b[2Jours"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "gen-5"), nil, 0o600), os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"step-7.dcp", "step-6.dcp"} { // an index of a step that exists, and one of a step that was removed
		if err := errors.Join(
			os.Mkdir(filepath.Join(dir, "gen-3", step), 0o755),
			os.WriteFile(filepath.Join(dir, "gen-3", step, ".metadata"), nil, 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	all := lookAt(t, filepath.Dir(dir), Options{Deep: true})
	got := only(t, all)
	if got.Good != 1 || got.Bad != 3 || got.Unfinished != 1 || len(got.Files) != 4 || all.Folders[0].Foreign != 2 {
		t.Fatalf("%+v", all)
	}
	for rank, f := range got.Files[:3] {
		if f.Status != Unreadable || !strings.Contains(f.Why, "not followed") {
			t.Errorf("rank %d: %+v", rank, f)
		}
	}
	if text := fmt.Sprint(all.Notes); !strings.Contains(text, "gen-4: is no folder") || !strings.Contains(text, "gen-5: is no folder") {
		t.Errorf("notes %q", all.Notes)
	}
}

// TestBounds: beyond the bounds the newest steps are reported, with a note that there are more.
func TestBounds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "train-uid")
	if err := os.MkdirAll(filepath.Join(dir, "gen-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	for step := range maxSteps + 100 {
		if err := os.WriteFile(filepath.Join(dir, "gen-1", format.RankFileName(int64(step+1), 0)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := lookAt(t, dir, Options{})
	if steps := got.Folders[0].Steps; len(steps) != maxSteps || steps[0].Step != maxSteps+100 || len(got.Notes) != 1 ||
		!strings.Contains(got.Notes[0], "100 older steps") {
		t.Errorf("%d steps, notes %q", len(steps), got.Notes)
	}
	l := &look{ctx: t.Context(), entries: 50, files: 30, runs: 10}
	root, err := os.OpenRoot(filepath.Join(dir, "gen-1"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	names, err := l.list(root)
	if err != nil || len(names) != 50 || len(l.notes) != 1 {
		t.Errorf("%d names, %v, notes %q", len(names), err, l.notes)
	}
	m := format.Manifest{Step: 5000, Generation: 1, Ranks: make([]format.ManifestRank, 100)}
	err = os.WriteFile(filepath.Join(dir, "gen-1", format.ManifestName(5000)), m.Encode(), 0o600)
	for rank := uint32(0); rank < 100; rank += 2 { // every second rank, so that no two files in a row are alike
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "gen-1", format.RankFileName(5000, rank)), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if step := l.step(root, &found{step: 5000, generation: 1, manifest: true}); len(step.Files) != 10 || step.Bad != 30 || step.Untold != 20 ||
		step.Unlooked != 70 ||
		step.Complete() {
		t.Errorf("%d runs, %d bad, %d untold, %d unlooked", len(step.Files), step.Bad, step.Untold, step.Unlooked)
	}
}

// TestTheNewestIsLookedAtFirst: a full folder of an old generation does not hide the steps of a newer one.
func TestTheNewestIsLookedAtFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "train-uid")
	write(t, dir, 10, 7, 0, 1, 2, 3)
	for rank := range 20 {
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, "gen-2"), 0o700),
			os.WriteFile(filepath.Join(dir, "gen-2", format.RankFileName(5, uint32(rank))), nil, 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l := &look{ctx: t.Context(), entries: 8, files: 8, runs: 10}
	got := l.folder(root, "train-uid", []string{"gen-10", "gen-2"})
	if len(got.Steps) != 2 || !got.Steps[0].Complete() || got.Steps[1].Complete() || len(l.notes) == 0 {
		t.Errorf("%+v, notes %q", got, l.notes)
	}
}

// TestWhatIsBeingRemovedIsNoDamage: manifests are removed first. So a step whose manifest was just removed is superseded, not damaged.
func TestWhatIsBeingRemovedIsNoDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "train-uid")
	write(t, dir, 3, 7, 0, 1, 2, 3)
	root, err := os.OpenRoot(filepath.Join(dir, "gen-3"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l := &look{ctx: t.Context(), entries: maxEntries, files: maxEntries, runs: maxAllRuns}
	names, err := l.list(root)
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := group(3, names)
	if got := l.step(root, steps[0]); got.Removed || !got.Complete() {
		t.Fatalf("before: %+v", got)
	}
	for _, name := range []string{"step-7.manifest.json", "step-7.rank-0"} {
		if err := os.Remove(filepath.Join(dir, "gen-3", name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.step(root, steps[0]); !got.Removed || got.Complete() {
		t.Errorf("after: %+v", got)
	}
	steps[0].manifest = false // a step that never had a manifest
	if got := l.step(root, steps[0]); got.Removed || got.Bad != 0 || got.Good != 3 || got.Has(0) {
		t.Errorf("without a manifest: %+v", got)
	}
}
