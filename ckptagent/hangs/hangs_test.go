//go:build linux

package hangs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func write(dir string) error { return os.WriteFile(filepath.Join(dir, "rank-0.stack.txt"), nil, 0o600) }

// TestKeep: the newest hangs stay, and a second answer to the same number changes nothing.
func TestKeep(t *testing.T) {
	f := Folder(filepath.Join(t.TempDir(), "hangs"))
	for _, h := range []Hang{{9, 100}, {10, 110}, {10, 120}, {2, 1000}} {
		if err := f.Keep(h, write); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(f.List()); got != "[10-110 10-120 2-1000]" {
		t.Errorf("kept %s", got)
	}
	if err := f.Keep(Hang{10, 110}, func(string) error { return errors.New("it was written before") }); err != nil {
		t.Error(err)
	}
}

// TestKill: what an agent leaves that is killed while it writes is no hang, and is removed by the next write.
func TestKill(t *testing.T) {
	f := Folder(filepath.Join(t.TempDir(), "hangs"))
	if err := f.Keep(Hang{1, 1}, func(dir string) error { return errors.Join(write(dir), errors.New("killed")) }); err == nil {
		t.Fatal("no error")
	}
	if got := f.List(); len(got) != 0 {
		t.Errorf("a torn folder counts: %v", got)
	}
	for _, h := range []Hang{{1, 1}, {1, 2}} {
		if err := f.Keep(h, write); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := f.names(); err != nil || fmt.Sprint(names) != "[1-1 1-2]" {
		t.Errorf("%v, %v", names, err)
	}
}

func TestParse(t *testing.T) {
	for _, name := range []string{"", "1", "1-", "-1", "01-2", "1-2.new", "1-2-3", "a-b", "../1-2"} {
		if h, ok := Parse(name); ok {
			t.Errorf("%q is %v", name, h)
		}
	}
}
