//go:build linux

package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestAFileInPlaceOfTheFolder: a file with the name of an index folder prevents no removal, and is removed like any file with a name of
// Holdfast.
func TestAFileInPlaceOfTheFolder(t *testing.T) {
	dir := t.TempDir()
	s := newStore(OS{}, dir, "test")
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
	s.IndexBy(textOf, func(_ protocol.Mark, why error) { told = why })
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

// TestAStepThatCannotBeNamedIsDurable: if the index of a step cannot be written, its manifest is written, the reason is reported, and there
// is no .metadata.
func TestAStepThatCannotBeNamedIsDurable(t *testing.T) {
	why := errors.New("it holds a tensor in part")
	for name, c := range map[string]struct {
		in   Indexer
		want string
	}{
		"no process":        {func(format.Manifest, string) (io.ReadCloser, error) { return nil, why }, why.Error()},
		"nothing is said":   {reading(""), why.Error()},
		"no number":         {reading("many\nvalues"), "invalid syntax"},
		"a number for ever": {reading(strings.Repeat("7", 1<<20)), "buffer full"},
		"less than it says": {reading("7\nvalue"), why.Error()},
		"half of the names": {reading("5\nvalueof all"), why.Error()},
	} {
		dir, m := t.TempDir(), protocol.Mark{Step: 2, Generation: 1}
		s := New(OS{}, dir, "test")
		var told error
		s.IndexBy(c.in, func(_ protocol.Mark, why error) { told = why })
		if err := errors.Join(put(s, m, 0), put(s, m, 1), s.PutManifest(manifestOf(m))); err != nil {
			t.Fatal(err)
		}
		if told == nil || !strings.Contains(told.Error(), c.want) {
			t.Errorf("%s: told %v", name, told)
		}
		if there, err := filepath.Glob(filepath.Join(dir, "gen-1", "*.dcp", ".metadata*")); err != nil || len(there) != 0 {
			t.Errorf("%s: there are %v, %v", name, there, err)
		}
		if complete, err := s.Complete(); err != nil || len(complete) != 1 {
			t.Errorf("%s: complete are %v, %v", name, complete, err)
		}
	}
}

// reading returns an Indexer that writes a text and then fails.
func reading(text string) Indexer {
	return func(format.Manifest, string) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(text), iotest.ErrReader(errors.New("it holds a tensor in part")))), nil
	}
}
