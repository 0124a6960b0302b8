package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestPauseProgram runs the hand-written program: it must sleep until killed.
func TestPauseProgram(t *testing.T) {
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		t.Skip("the program is for linux/amd64")
	}
	p := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(p, pauseProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(p)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("the program ended by itself: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) {
		t.Fatalf("got %v, want an end by signal", err)
	}
}

func TestSameFilesSameBytes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b", filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	build := func() []byte {
		files, err := Copy(dir, "/data")
		if err != nil {
			t.Fatal(err)
		}
		out, err := (&Image{Name: "holdfast.dev/test/x:1", Files: files, Entrypoint: []string{"/data/b"}}).Tar()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := build()
	if !bytes.Equal(first, build()) {
		t.Fatal("two builds of the same files differ")
	}
	if got := strings.Join(layerNames(t, first), " "); got != "data/ data/a data/b" {
		t.Fatalf("layer holds %q", got)
	}
}

func TestNameNeedsTag(t *testing.T) {
	for _, name := range []string{"", "agent", "holdfast.dev/agent", "holdfast.dev/agent:UPPER TAG"} {
		if err := (&Image{Name: name}).Write(io.Discard); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
}

// layerNames lists the files of the one layer in an image archive.
func layerNames(t *testing.T, archive []byte) []string {
	t.Helper()
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if err != nil {
			t.Fatal("no layer in the archive:", err)
		}
		if !strings.Contains(h.Name, ".tar") {
			continue
		}
		var out []string
		for lr := tar.NewReader(tr); ; {
			e, err := lr.Next()
			if errors.Is(err, io.EOF) {
				return out
			}
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e.Name)
		}
	}
}
