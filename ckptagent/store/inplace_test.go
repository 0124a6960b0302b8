//go:build linux

package store

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/stock"
	"holdfast.dev/holdfast/internal/protocol"
)

// torchPython is the Python that has torch.
func torchPython(t *testing.T) string {
	t.Helper()
	for _, python := range []string{os.Getenv("HOLDFAST_TEST_PYTHON"), "/opt/holdfast-python/venv/bin/python3", "python3"} {
		if python != "" && exec.Command(python, "-c", "import torch, numpy").Run() == nil {
			return python
		}
	}
	t.Skip("TORCH IS MISSING")
	return ""
}

// TestStockTorchReadsStepsInPlace: states that real ranks of torch kept are put into storage, and a process that cannot import holdfast
// loads each step from there: every name has the value, the path and the parts that holdfast.export gives the same step; then on four ranks
// that are sharded otherwise, and on two again.
func TestStockTorchReadsStepsInPlace(t *testing.T) {
	python := torchPython(t)
	tests, err := filepath.Abs("../python/tests")
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(python, append([]string{"-W", "ignore"}, args...)...)
		cmd.Dir = t.TempDir()
		if args[0] == "-m" {
			cmd.Dir = filepath.Dir(tests)
		}
		cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	states := filepath.Join(t.TempDir(), "states")
	run("-m", "tests.inplace_states", "make", states)
	var names, export, check []string
	in := map[string]string{}
	for _, name := range []string{"trained", "planned", "kinds", "opaque"} {
		dir, exported := filepath.Join(t.TempDir(), "job-uid"), filepath.Join(t.TempDir(), "exported")
		in[name] = putStates(t, dir, filepath.Join(states, name))
		names, export, check = append(names, name), append(export, dir, exported), append(check, in[name], exported, "")
	}
	for i, report := range strings.Split(strings.TrimSpace(run(append([]string{"-m", "tests.inplace_states", "export"}, export...)...)), "\n") {
		check[3*i+2] = report
	}
	said := strings.Split(run(append([]string{filepath.Join(tests, "inplace_check.py")}, check...)...), "\n")
	for i, want := range []string{
		`^\d\d\d names are equal, of \d+ tensors in \d\d\d parts; 8 are not told of ranks that differ`, // running_mean and _var of DDP
		`^57 names are equal, of 32 tensors in 53 parts; 0 are not`,
		`^103 names are equal, of 36 tensors in 36 parts; 1 are not`, // rank 0's of those that differ in shape
		`^1 names are equal, of 1 tensors in 1 parts; 0 are not`,
	} {
		if !regexp.MustCompile(want).MatchString(said[i]) {
			t.Errorf("%s: %q, want %s", names[i], said[i], want)
		}
		t.Log(names[i], said[i])
	}
	loaded := run(filepath.Join(tests, "export_stock.py"), in["trained"], filepath.Join(states, "trained", "whole.pt"), filepath.Join(t.TempDir(), "again"))
	if !regexp.MustCompile(`each rank's own values are there\n\d+ tensors are equal on 4 ranks\n\d+ tensors are equal on 2 ranks`).MatchString(loaded) {
		t.Error(loaded)
	}
}

// putStates puts what lies in a folder of states into storage, as step 2 of generation 1; it returns what stock torch reads.
func putStates(t *testing.T, dir, states string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(states, "rank-*.data"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no states in %s: %v", states, err)
	}
	s := New(OS{}, dir, "test")
	s.TellNotNamed(func(m protocol.Mark, why error) { t.Errorf("step %v: %v", m, why) })
	m := format.Manifest{Step: 2, Generation: 1}
	for rank, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f := format.RankFile{Rank: uint32(rank), WorldSize: uint32(len(files)), Step: 2, Generation: 1, Length: uint64(len(data)), Checksum: format.Checksum(data)}
		if err := s.Put(t.Context(), f, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		m.Ranks = append(m.Ranks, format.ManifestRank{Length: f.Length, Checksum: f.Checksum})
	}
	if err := s.PutManifest(m); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "gen-1", "step-2.dcp")
}

// TestAFileInPlaceOfTheFolder keeps nothing from being removed, and goes as any other of our naming.
func TestAFileInPlaceOfTheFolder(t *testing.T) {
	dir := t.TempDir()
	s := New(OS{}, dir, "test")
	for _, m := range []protocol.Mark{{Step: 1, Generation: 1}, {Step: 2, Generation: 1}} {
		if err := errors.Join(put(s, m, 0), put(s, m, 1), s.PutManifest(manifestOf(m))); err != nil {
			t.Fatal(err)
		}
	}
	old := filepath.Join(dir, "gen-1", "step-1.dcp")
	if err := errors.Join(os.RemoveAll(old), os.WriteFile(old, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var told error
	s.TellNotNamed(func(_ protocol.Mark, why error) { told = why })
	if err := s.PutManifest(manifestOf(protocol.Mark{Step: 1, Generation: 1})); err != nil || told == nil {
		t.Errorf("its manifest again: %v, told %v", err, told)
	}
	if err := s.Prune(protocol.Mark{Step: 2, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "gen-1"))
	if err != nil || len(left) != 4 || left[0].Name() != "step-2.dcp" {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestAStepThatCannotBeNamedIsDurable: its manifest is written all the same, and it is said why.
func TestAStepThatCannotBeNamedIsDurable(t *testing.T) {
	dir := t.TempDir()
	s := New(OS{}, dir, "test")
	var told error
	s.TellNotNamed(func(_ protocol.Mark, why error) { told = why })
	data := []byte("a state of somebody's own, as long as a head is: sixty-four bytes")
	f := format.RankFile{WorldSize: 1, Step: 2, Generation: 1, Length: uint64(len(data)), Checksum: format.Checksum(data)}
	if err := s.Put(t.Context(), f, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := s.PutManifest(format.Manifest{Step: 2, Generation: 1, Ranks: []format.ManifestRank{{Length: f.Length, Checksum: f.Checksum}}}); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(told, stock.ErrNotNamed) || !strings.Contains(told.Error(), "was not written by the client") {
		t.Errorf("told %v", told)
	}
	if there, err := filepath.Glob(filepath.Join(dir, "gen-1", "*")); err != nil || len(there) != 2 {
		t.Errorf("there are %v, %v", there, err)
	}
}
