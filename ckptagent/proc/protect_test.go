//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"testing"
)

// What other users of the container have put among the compiled modules is not kept under root's name.
func TestRootTrustsNoCompiledModuleOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: not root, for whom alone protect acts")
	}
	root := Root(t.TempDir())
	compiled := filepath.Join(root.Python(), "holdfast", "__pycache__")
	planted, module := filepath.Join(compiled, "_client.cpython-313.pyc"), filepath.Join(root.Python(), "holdfast", "_client.py")
	for _, dir := range []string{filepath.Dir(root.Binary()), root.Shims(), root.Run(), root.Memory(), root.Ranks(), compiled} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{planted, module} {
		if err := os.WriteFile(file, []byte("planted"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(compiled, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := root.protect(); err != nil {
		t.Fatal(err)
	}
	folder, err := os.Stat(compiled)
	if err != nil || folder.Mode().Perm() != 0o755 {
		t.Errorf("the folder is %v: %v", folder, err)
	}
	if _, err := os.Stat(planted); !os.IsNotExist(err) {
		t.Errorf("the planted module is there: %v", err)
	}
	if _, err := os.Stat(module); err != nil {
		t.Errorf("a module is gone: %v", err)
	}
}
