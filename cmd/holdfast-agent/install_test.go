//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// A training container runs as a user that the installer does not know; its Python compiles the installed modules once.
func TestAnyUserKeepsCompiledModules(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "install-") // T.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	umask := syscall.Umask(0)
	defer syscall.Umask(umask)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := install(dir); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "python")
	for _, folder := range []string{at, filepath.Join(at, "holdfast")} {
		kept, err := os.Stat(filepath.Join(folder, "__pycache__"))
		if err != nil || kept.Mode().Perm() != 0o777 {
			t.Errorf("%s: %v, %v", folder, kept, err)
		}
	}
	const python = "/opt/holdfast-python/venv/bin/python3" // that of PATH may be closed to other users
	if _, err := os.Stat(python); err != nil {
		t.Skip("SKIPPED: make prepare installs ", python)
	}
	load := exec.Command(python, "-c", "import holdfast")
	load.Dir = "/"
	load.Env = []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + at}
	if os.Geteuid() == 0 {
		load.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("import holdfast: %v: %s", err, out)
	}
	for _, kept := range []string{"holdfast/__pycache__/_client.*.pyc", "__pycache__/sitecustomize.*.pyc"} {
		if found, _ := filepath.Glob(filepath.Join(at, kept)); len(found) != 1 {
			t.Errorf("%s: Python kept %d files", kept, len(found))
		}
	}
}
