//go:build linux

package loop

import (
	"os"
	"path/filepath"
	"testing"

	"holdfast.dev/holdfast/ckptagent/hangs"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/internal/eventually"
)

// TestHangsGoToStorage: those of an earlier agent at the start, and further ones; while storage cannot be written they stay in the pod.
func TestHangsGoToStorage(t *testing.T) {
	folder, job := hangs.Folder(filepath.Join(t.TempDir(), "hangs")), filepath.Join(t.TempDir(), "job")
	keep := func(h hangs.Hang) {
		t.Helper()
		if err := folder.Keep(h, func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "rank-0.stack.txt"), []byte("frames"), 0o600)
		}); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(h hangs.Hang) {
		t.Helper()
		eventually.Holds(t, "it is in storage and no more in the pod", func() (bool, any) {
			raw, err := os.ReadFile(filepath.Join(job, "hangs", h.String(), "rank-0.stack.txt"))
			return err == nil && string(raw) == "frames" && len(folder.List()) == 0, err
		})
	}
	k := &uploader{store: store.New(store.OS{}, job, "w"), logf: func(string, ...any) {}, hangsKept: make(chan struct{}, 1)}
	if err := os.WriteFile(job, nil, 0o600); err != nil { // no folder can be made there
		t.Fatal(err)
	}
	first, second := hangs.Hang{Generation: 1, Look: 100}, hangs.Hang{Generation: 2, Look: 200}
	keep(first)
	if err := k.copyHang(folder, first); err == nil || len(folder.List()) != 1 {
		t.Fatalf("%v; in the pod: %v", err, folder.List())
	}
	if err := os.Remove(job); err != nil {
		t.Fatal(err)
	}
	go k.copyHangs(folder)
	stored(first)
	keep(second)
	k.hangKept()
	stored(second)
}
