// Package tree reads all regular files of the source tree, for tests that check their text. Read skips folders whose
// name begins with a dot, and the folders bin and shared.
package tree

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fewest is the least number of files, so that a test with a wrong root fails.
const fewest = 500

// Read returns the text of every regular file below root, by its path from there.
func Read(t testing.TB, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		if d.IsDir() && (filepath.Dir(path) == root && (d.Name() == "bin" || d.Name() == "shared") || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, root+"/")] = string(text)
		return err
	})
	if err != nil || len(all) < fewest {
		t.Fatalf("read %d files, %v", len(all), err)
	}
	return all
}
