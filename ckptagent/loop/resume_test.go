//go:build linux

package loop

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

// announced writes the files of an agent that died after a client's announcement and before the seal: an arena with two sealed steps, and a
// third step that is copied and has no checksum yet.
func announced(t *testing.T, c Config) {
	t.Helper()
	set, err := arena.Open(c.Root.Memory(), 1, c.Slots, c.StateBytes, c.PodUID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	set.Begin(1, 0, format.Point{})
	f, err := os.OpenFile(filepath.Join(c.Root.Memory(), "rank-0.arena"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for step := range uint64(3) {
		if step > 0 {
			set.Poll(0, time.Now())
		}
		page := make([]byte, format.PageSize)
		if _, err := f.ReadAt(page, format.ControlOffset); err != nil {
			t.Fatal(err)
		}
		control, err := format.DecodeControl(page)
		if err != nil {
			t.Fatal(err)
		}
		said := format.Client{
			Seq:        step + 1,
			Attached:   true,
			Generation: 1,
			Slot:       control.Slot,
			Grant:      control.Grant,
			CopyStep:   int64(step + 1),
			Step:       int64(step + 1),
			Length:     c.StateBytes,
		}
		if _, err := f.WriteAt(said.Encode(), format.ClientOffset+int64(said.Seq%2)*format.PageSize/2); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResumesWithoutVerifying: an agent that replaces a dead one does not wait for a checksum before its first report. Another goroutine
// computes the checksum, and a later report has the step.
func TestResumesWithoutVerifying(t *testing.T) {
	coordinator := coordtest.Start(t)
	c := Config{
		Root:        proc.Root(t.TempDir()),
		Container:   "c1",
		Coordinator: coordinator.Address(),
		CA:          coordinator.CA,
		PodUID:      "uid",
		Slots:       format.Slots,
		StateBytes:  1 << 20,
		Log:         io.Discard,
	}
	for _, dir := range []string{c.Root.Run(), c.Root.Memory()} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	announced(t, c)
	before := ckptagent.New()
	before.Incarnation, before.Generation, before.Phase, before.Run, before.Clean, before.Known = 1, 1, protocol.StateFailed, protocol.Run{
		Number:    1,
		WorldSize: 1,
		Nodes:     1,
	}, false, true
	before.Ranks, before.Rank = 1, []ckptagent.Rank{{Exit: &protocol.Exit{Code: 1}}}
	raw, err := json.Marshal(persisted{Container: c.Container, State: before.Durable})
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
	a.resume() // results of other goroutines are handled in a.loop, which this test replaces
	first := a.state.Report()
	if len(first.Rank) != 1 || first.Incarnation != 2 || first.Rank[0].Step != 3 ||
		!slices.Equal(protocol.Steps(first.Rank[0].Sealed), []int64{1, 2}) {
		t.Fatalf("it begins with %+v", first)
	}
	limit := time.After(time.Minute)
	for !slices.Equal(protocol.Steps(a.state.Report().Rank[0].Sealed), []int64{1, 2, 3}) {
		select {
		case f := <-a.inbox:
			f()
		case <-limit:
			t.Fatalf("it never told of step 3: %+v", a.state.Report())
		}
	}
}

// resumed returns an agent that takes over from one that left the state k. Its coordinator does not exist.
func resumed(t *testing.T, k persisted) *Agent {
	t.Helper()
	coordinator := coordtest.Start(t)
	c := Config{Root: proc.Root(t.TempDir()), Container: k.Container, Coordinator: coordinator.Address(), CA: coordinator.CA, Log: io.Discard}
	if err := os.MkdirAll(c.Root.Run(), 0o777); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{c.Root.StateFile(): raw, c.Root.HeldFile(): []byte(`{"pid":50,"start":1}`)} {
		if err := os.WriteFile(file, content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	a, err := newAgent(c)
	if err != nil {
		t.Fatal(err)
	}
	a.resume()
	return a
}

// TestRanksOfTheGenerationBefore: an agent dies after it has accepted a generation and before it has started its ranks. Its state still has
// the ranks of the previous generation. These have ended, and their pids may be reused.
func TestRanksOfTheGenerationBefore(t *testing.T) {
	sleep := exec.Command("sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	left := ckptagent.New()
	left.Incarnation, left.Generation, left.Phase, left.Run, left.Clean, left.Known = 1, 2, protocol.StateRunning, protocol.Run{
		Number:    2,
		WorldSize: 1,
		Nodes:     1,
	}, false, true
	left.Ranks, left.Rank = 1, []ckptagent.Rank{{}}
	for of, known := range map[int64]bool{1: false, 2: true} {
		a := resumed(t, persisted{Container: "c1", State: left.Durable, Ranks: map[int]proc.Process{0: {PID: sleep.Process.Pid}}, RanksOf: of})
		if _, ok := a.ranks[0]; ok != known {
			t.Errorf("ranks of generation %d: %v", of, a.ranks)
		}
	}
}

// TestReleaseThatWasStoredOnly: init does not wait for an agent that has no command to run.
func TestReleaseThatWasStoredOnly(t *testing.T) {
	for _, whole := range []bool{false, true} {
		left := ckptagent.New()
		left.Incarnation, left.Whole = 1, whole
		a := resumed(t, persisted{Container: "c1", State: left.Durable})
		if _, err := os.Stat(a.c.Root.HeldFile()); (err == nil) != whole {
			t.Errorf("whole %v: %v", whole, err)
		}
	}
}

// TestCommandThatCannotBeRead: an effect that needs the command ends the generation or is skipped.
func TestCommandThatCannotBeRead(t *testing.T) {
	left := ckptagent.New()
	left.Incarnation, left.Whole, left.Ranks, left.Rank = 1, true, 1, []ckptagent.Rank{{}}
	a := resumed(t, persisted{Container: "c1", State: left.Durable})
	for _, e := range []ckptagent.Effect{
		ckptagent.InspectCommand{},
		ckptagent.Adopt{},
		ckptagent.Start{Run: protocol.Run{Number: 1}, Ranks: 1, FirstRun: true},
	} {
		a.carryOut(e)
	}
	if e, ok := a.queue[0].(ckptagent.Exited); len(a.queue) != 1 || !ok || e.Code != 127 {
		t.Errorf("it brings %+v", a.queue)
	}
}
