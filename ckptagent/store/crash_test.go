//go:build linux && !race

package store

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
)

// TestCrashAtEveryOperation: the writer dies at each operation, with and without a power failure. What it acknowledged exists, every file
// is complete, and the next writer reaches the same final state.
func TestCrashAtEveryOperation(t *testing.T) {
	whole := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
	if _, err := history(newStore(whole, jobFolder, "a")); err != nil {
		t.Fatal(err)
	}
	for _, power := range []bool{false, true} {
		for crash := 1; crash <= whole.ops; crash++ {
			for seed := range seeds.All(t, uint64(3)) {
				m := newMemFS(rand.New(rand.NewPCG(uint64(crash), seed)), crash)
				ack, err := history(newStore(m, jobFolder, "a"))
				if err == nil {
					t.Fatalf("crash at %d of %d did not happen", crash, whole.ops)
				}
				after := m.reboot(power)
				s := newStore(after, jobFolder, "b")
				if err := check(s, ack); err != nil {
					t.Fatalf("power lost %v, crash at operation %d, seed %d: %v\n%s", power, crash, seed, err, m)
				}
				ack, err = history(s)
				if err == nil {
					err = check(s, ack)
				}
				if err != nil {
					t.Fatalf("power lost %v, crash at operation %d, seed %d, the next writer: %v\n%s", power, crash, seed, err, after)
				}
			}
		}
	}
	t.Logf("%d operations", whole.ops)
}

// TestPowerIsLostAfterAWriterDied: a writer dies before it syncs the folder of a file. The next writer finds the file under its name and
// acknowledges it. After that the file must survive a power failure.
func TestPowerIsLostAfterAWriterDied(t *testing.T) {
	whole := newMemFS(rand.New(rand.NewPCG(0, 0)), 0)
	if _, err := history(newStore(whole, jobFolder, "a")); err != nil {
		t.Fatal(err)
	}
	const soon = 14 // operations of the next writer: one rank file, and another one up to its sync
	for first := 1; first <= whole.ops; first++ {
		for second := 2; second <= soon; second += 3 {
			for seed := range seeds.All(t, uint64(1)) {
				m := newMemFS(rand.New(rand.NewPCG(uint64(first), uint64(second)<<32|seed)), first)
				if _, err := history(newStore(m, jobFolder, "a")); err == nil {
					t.Fatalf("crash at %d of %d did not happen", first, whole.ops)
				}
				ack, err := history(newStore(m.goOn(second), jobFolder, "b"))
				if err == nil {
					continue // there were fewer operations
				}
				after := m.reboot(true)
				if err := check(newStore(after, jobFolder, "c"), ack); err != nil {
					t.Fatalf("the writer died at operation %d, power was lost at operation %d of the next, seed %d: %v\n%s", first, second, seed, err, m)
				}
			}
		}
	}
}

// TestMemFSLosesWhatPOSIXLetsItLose checks the file system on which the crash tests rely. Each part that was not synced survives or is lost
// independently of others: a name without its data, data without its name, some of several renames, a removal. Synced parts always survive.
func TestMemFSLosesWhatPOSIXLetsItLose(t *testing.T) {
	synced, unsynced := []byte("synced"), []byte("not synced")
	seen := map[string]int{}
	for seed := range uint64(400) {
		m := newMemFS(rand.New(rand.NewPCG(seed, 1)), 0)
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(m.MkdirAll("/claim/d"))
		must(m.SyncDir("/claim"))
		write := func(name string, sync bool) {
			f, err := m.Create(name)
			must(err)
			_, err = f.WriteAt(synced, 0)
			must(err)
			must(f.Sync())
			if !sync {
				_, err = f.WriteAt(unsynced, int64(len(synced)))
				must(err)
			}
		}
		write("/claim/d/kept", true)
		write("/claim/d/removed", true)
		must(m.SyncDir("/claim/d"))
		must(m.Remove("/claim/d/removed"))
		for _, name := range []string{"a", "b"} {
			write("/claim/d/"+name+".part", true)
			must(m.Rename("/claim/d/"+name+".part", "/claim/d/"+name))
		}
		write("/claim/d/torn", false)
		must(m.MkdirAll("/claim/late"))
		write("/claim/late/file", true)
		must(m.SyncDir("/claim/late"))

		after := m.reboot(true)
		names, _ := after.List("/claim/d")
		has := func(name string) bool { return slices.Contains(names, name) }
		if !has("kept") {
			t.Fatal("what was synced is lost")
		}
		late, _ := after.List("/claim/late")
		seen[fmt.Sprintf("renames %v %v", has("a"), has("b"))]++
		seen[fmt.Sprintf("data without its name %v", has("a.part") || !has("a"))]++
		seen[fmt.Sprintf("removed and there %v", has("removed"))]++
		seen[fmt.Sprintf("file in a folder that was not synced %v", len(late) == 1)]++
		if in, err := after.Open("/claim/d/torn", 0); err == nil {
			data, _ := io.ReadAll(in)
			rest, ok := bytes.CutPrefix(data, synced)
			if !ok {
				t.Fatalf("what was synced is %q", data)
			}
			switch {
			case bytes.Equal(rest, unsynced):
				seen["data that was not synced: all"]++
			case len(rest) == 0:
				seen["data that was not synced: none"]++
			case bytes.HasPrefix(unsynced, rest):
				seen["data that was not synced: a part"]++
			case bytes.Equal(rest, make([]byte, len(unsynced))):
				seen["data that was not synced: zeros"]++
			case len(rest) == len(unsynced):
				seen["data that was not synced: anything"]++
			}
		}
	}
	for _, what := range []string{
		"renames false false", "renames true false", "renames false true", "renames true true",
		"data without its name true", "removed and there true", "removed and there false",
		"file in a folder that was not synced true", "file in a folder that was not synced false",
		"data that was not synced: all", "data that was not synced: none", "data that was not synced: a part",
		"data that was not synced: zeros", "data that was not synced: anything",
	} {
		if seen[what] == 0 {
			t.Errorf("%s: never seen; %v", what, seen)
		}
	}
}
