package hack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestTarball: the same names and content give the same archive, whatever the locale, and the order, times and modes of the files; a
// program stays one.
func TestTarball(t *testing.T) {
	var archives [2][]byte
	for n, names := range [][]string{{"kubectl-holdfast", "LICENSE"}, {"LICENSE", "kubectl-holdfast"}} {
		dir, out := t.TempDir(), filepath.Join(t.TempDir(), "a.tar.gz")
		for _, name := range names {
			at := filepath.Join(dir, name)
			mode := []os.FileMode{0o600, 0o644}[n]
			if name == "kubectl-holdfast" {
				mode = []os.FileMode{0o755, 0o700}[n]
			}
			then := time.Now().Add(-time.Duration(n) * time.Hour)
			if err := errors.Join(os.WriteFile(at, []byte(name), mode), os.Chtimes(at, then, then)); err != nil {
				t.Fatal(err)
			}
		}
		pack := exec.Command("./tarball.sh", dir, out)
		pack.Env = append(os.Environ(), "LC_ALL="+[]string{"C", "en_US.UTF-8"}[n])
		if said, err := pack.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		var err error
		if archives[n], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives differ")
	}
	z, err := gzip.NewReader(bytes.NewReader(archives[0]))
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[h.Name] = h.Mode
		if content, err := io.ReadAll(r); err != nil || string(content) != h.Name {
			t.Errorf("%s holds %q: %v", h.Name, content, err)
		}
	}
	if len(modes) != 2 || modes["kubectl-holdfast"] != 0o755 || modes["LICENSE"] != 0o644 {
		t.Errorf("modes %v", modes)
	}
}
