package harness

import (
	"cmp"
	"path/filepath"
	"slices"
	"testing"
)

// TestKeepRow: rows are kept in order, each once.
func TestKeepRow(t *testing.T) {
	type row struct {
		Name  string
		Value int
	}
	path := filepath.Join(t.TempDir(), "new", "rows.jsonl")
	for _, r := range []row{{"b", 1}, {"a", 2}, {"b", 3}} {
		KeepRow(t, path, r, func(a, b row) int { return cmp.Compare(a.Name, b.Name) })
	}
	if got, want := ReadRows[row](t, path), []row{{"a", 2}, {"b", 3}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
