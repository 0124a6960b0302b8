package python

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryFileIsEmbedded: a file that is added and not embedded would be missing only in pods, where no other test notices it.
func TestEveryFileIsEmbedded(t *testing.T) {
	count := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "tests" || d.Name() == "__pycache__"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".py"):
			return nil
		}
		count++
		have, err := Files.ReadFile(filepath.ToSlash(path))
		if err != nil {
			t.Errorf("%s is not embedded", path)
			return nil
		}
		want, err := os.ReadFile(path)
		if err == nil && string(have) != string(want) {
			t.Errorf("%s differs from what is embedded", path)
		}
		return err
	})
	if err != nil || count < 7 {
		t.Fatalf("%d files: %v", count, err)
	}
}
