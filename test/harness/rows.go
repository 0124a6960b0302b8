package harness

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// keeping lets one test at a time change a file of rows.
var keeping sync.Mutex

// ReadRows reads a file that has one JSON object per line; there may be no such file.
func ReadRows[T any](t testing.TB, path string) (rows []T) {
	t.Helper()
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var r T
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %s: %v", path, lines.Text(), err)
		}
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return rows
}

// KeepRow writes a row into such a file, in place of the one that order calls equal, and sorts the rows.
func KeepRow[T any](t testing.TB, path string, row T, order func(a, b T) int) {
	t.Helper()
	keeping.Lock()
	defer keeping.Unlock()
	rows := append(slices.DeleteFunc(ReadRows[T](t, path), func(old T) bool { return order(old, row) == 0 }), row)
	slices.SortFunc(rows, order)
	out := &strings.Builder{}
	lines := json.NewEncoder(out)
	for _, r := range rows {
		if err := lines.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
