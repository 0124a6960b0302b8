//go:build linux

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/hangs"
)

// TestHangs: complete files of the newest hangs of all pods; those of older ones are removed, with what a killed writer has left.
func TestHangs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	a, b := New(OS{}, dir, "a"), New(OS{}, dir, "b")
	for look := range int64(5) {
		h := hangs.Hang{Generation: 10 - look, Look: 100 + look}
		for i, s := range []*Store{a, b} {
			if err := s.PutHang(h, fmt.Sprintf("rank-%d.stack.txt", i), strings.NewReader("frames")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(a.HangFolder(h), "rank-2.stack.txt.c-1.part"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.PruneHangs(); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "hangs", "*", "*.txt"))
	if err != nil || len(kept) != 2*hangs.Most || !strings.Contains(kept[0], "6-104") {
		t.Errorf("%v, %v", kept, err)
	}
	if raw, err := os.ReadFile(kept[0]); err != nil || string(raw) != "frames" {
		t.Errorf("%q, %v", raw, err)
	}
	if folders, _ := filepath.Glob(filepath.Join(dir, "hangs", "*")); len(folders) != hangs.Most {
		t.Errorf("folders %v", folders)
	}
}
