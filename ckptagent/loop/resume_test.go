//go:build linux

package loop

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc"
)

// announced leaves what an agent leaves that dies between the client's word and the seal: an arena with two sealed steps, and a
// third that is copied and has no checksum yet.
func announced(t *testing.T, c Config) {
	t.Helper()
	set, err := arena.Open(c.Root.Memory(), 1, c.StateBytes, c.PodUID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	set.Begin(1, 0)
	f, err := os.OpenFile(filepath.Join(c.Root.Memory(), "rank-0.arena"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for step := range uint64(3) {
		if step > 0 {
			set.Look(0, time.Now())
		}
		page := make([]byte, format.PageSize)
		if _, err := f.ReadAt(page, format.ControlOffset); err != nil {
			t.Fatal(err)
		}
		control, err := format.DecodeControl(page)
		if err != nil {
			t.Fatal(err)
		}
		said := format.Client{Seq: step + 1, Attached: true, Generation: 1, Slot: control.Slot, Grant: control.Grant, CopyStep: step + 1, Step: step + 1, Length: c.StateBytes}
		if _, err := f.WriteAt(said.Encode(), format.ClientOffset+int64(said.Seq%2)*format.PageSize/2); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResumesWithoutVerifying: what an agent tells first, when it takes over from one that died, waits for no checksum; that is
// taken aside, and told when it is known.
func TestResumesWithoutVerifying(t *testing.T) {
	coordinator := coordtest.Start(t)
	c := Config{Root: proc.Root(t.TempDir()), Container: "c1", Coordinator: coordinator.Address(), CA: coordinator.CA, PodUID: "uid", StateBytes: 1 << 20, Log: io.Discard}
	for _, dir := range []string{c.Root.Run(), c.Root.Memory()} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	announced(t, c)
	before := ckptagent.New()
	before.Incarnation, before.Generation, before.Phase, before.Run, before.Clean, before.Known = 1, 1, ckptagent.Failed, ckptagent.Run{Number: 1, WorldSize: 1, Nodes: 1}, false, true
	before.Ranks, before.Rank = 1, []ckptagent.Rank{{Exit: &ckptagent.Exit{Code: 1}}}
	raw, err := json.Marshal(kept{Container: c.Container, State: before})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Root.StateFile(), raw, 0o666); err != nil {
		t.Fatal(err)
	}

	a, err := newAgent(c)
	if err != nil {
		t.Fatal(err)
	}
	a.resume() // whatever is found aside is taken in by a.loop, which this test is
	first := a.state.Report()
	if len(first.Rank) != 1 || first.Incarnation != 2 || first.Rank[0].Step != 3 || !slices.Equal(first.Rank[0].Sealed, []uint64{1, 2}) {
		t.Fatalf("it begins with %+v", first)
	}
	limit := time.After(time.Minute)
	for !slices.Equal(a.state.Report().Rank[0].Sealed, []uint64{1, 2, 3}) {
		select {
		case f := <-a.inbox:
			f()
		case <-limit:
			t.Fatalf("it never told of step 3: %+v", a.state.Report())
		}
	}
}
