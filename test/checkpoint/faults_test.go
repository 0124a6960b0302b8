//go:build linux

package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/test/trainer"
)

const (
	faultState = 256 << 10
	// faultPause is the duration of a step without its save.
	faultPause = 10 * time.Millisecond
	// whileFaulty is how long a fault lasts at least after it has affected an operation.
	whileFaulty = 2 * time.Second
	// mostBackoff is the pause before a retry, 15 s as docs/formats/storage.md says, plus the copy itself on a busy machine.
	mostBackoff = 15*time.Second + 15*time.Second
	// mostEnd bounds the end of a pod: the grace period, which a pod uses up if no pod replaces it, plus the end of init.
	mostEnd = 10 * time.Second
)

// faulty is a gang of one pod whose storage can be made to fail.
type faulty struct {
	*gang
	folder *faultyFolder
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); os.Geteuid() != 0 || errors.Is(err, os.ErrNotExist) {
		t.Skipf("SKIPPED: storage that fails: it needs root and /dev/fuse (%v)", err)
	}
	f := &faulty{folder: newFaultyFolder(t)}
	f.gang = newGangOf(
		t,
		1,
		1,
		faultState+16384,
		f.folder.mount,
		interpreter,
		trainer.File(t, trainer.Script),
		fmt.Sprint(faultPause.Seconds()),
		fmt.Sprint(faultState),
	)
	f.running(0)
	f.awaitManifest(1)
	return f
}

// saves returns the results of all saves in the log.
func (f *faulty) saves() (made []bool) {
	f.t.Helper()
	raw, err := os.ReadFile(f.log)
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		switch words := strings.Fields(line); {
		case len(words) < 4 || !strings.HasSuffix(line, "\n"):
		case words[2] == "saved":
			made = append(made, true)
		case words[2] == "skipped":
			made = append(made, false)
		}
	}
	return made
}

// mostTrouble is how many of 100 saves may be skipped for other reasons: on an overloaded machine a seal comes late.
const mostTrouble = 3

// watchSaves checks that training goes on as before for a while: each save is kept, and steps are as fast. before is the number of saves
// per second without the fault. A busy machine slows steps too, but not in each of several tries.
func (f *faulty) watchSaves(before float64, during func()) {
	f.t.Helper()
	var rates []float64
	for range 3 {
		had, began := len(f.saves()), time.Now()
		during()
		eventually.Holds(f.t, "a hundred saves", func() (bool, any) { n := len(f.saves()) - had; return n >= 100 && time.Since(began) >= whileFaulty, n })
		made, took := f.saves()[had:], time.Since(began)
		skipped := 0
		for _, ok := range made {
			if !ok {
				skipped++
			}
		}
		rate := float64(len(made)) / took.Seconds()
		f.t.Logf("%d saves in %s, %d of them skipped: %.0f a second; before it was %.0f", len(made), took.Round(time.Millisecond), skipped, rate, before)
		if skipped > len(made)*mostTrouble/100 {
			f.t.Errorf("%d of %d saves were skipped while storage was in trouble", skipped, len(made))
		}
		if rate >= before/2 {
			return
		}
		rates, during = append(rates, rate), func() {}
	}
	f.t.Errorf("%.0f saves a second while storage was in trouble, %.0f before", rates, before)
}

// pace returns the present number of saves per second.
func (f *faulty) pace() float64 {
	f.t.Helper()
	had, began := len(f.saves()), time.Now()
	eventually.Holds(f.t, "fifty saves", func() (bool, any) { n := len(f.saves()) - had; return n >= 50, n })
	return float64(len(f.saves())-had) / time.Since(began).Seconds()
}

// awaitNote waits until the agent's report contains text.
func (f *faulty) awaitNote(text string) {
	f.t.Helper()
	eventually.Holds(f.t, "the agent's report says: "+text, func() (bool, any) {
		notes := f.c.Report(f.pods[0].Name).GetNotes()
		return slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, text) }), notes
	})
}

// awaitNoNote waits until the agent's report has no note on storage.
func (f *faulty) awaitNoNote() {
	f.t.Helper()
	eventually.Holds(f.t, "the agent's report has no note on storage", func() (bool, any) {
		notes := f.c.Report(f.pods[0].Name).GetNotes()
		return !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "storage") }), notes
	})
}

// awaitDurable waits for one more durable step, at most for the promised pause before a retry.
func (f *faulty) awaitDurable() {
	f.t.Helper()
	_, had := f.d.Durable()
	began := time.Now()
	eventually.Holds(f.t, "the next durable step", func() (bool, any) { _, n := f.d.Durable(); return n > had, n })
	took := time.Since(began)
	f.t.Logf("the next step was durable %s after the fault's end", took.Round(time.Millisecond))
	if took > mostBackoff {
		f.t.Errorf("the next step was durable %s after the fault's end", took)
	}
}

// checkStored reads, without faults, the recorded step and all steps that storage marks as complete.
func (f *faulty) checkStored(generation uint64) {
	f.t.Helper()
	f.readAll(f.folder.backing)
	s := store.New(store.OS{}, filepath.Join(f.folder.backing, "gang-uid"), "stranger")
	for {
		step, _ := f.d.Durable()
		err := f.readStep(s, protocol.Mark{Step: int64(step), Generation: int64(generation)})
		if err == nil {
			return
		}
		if now, _ := f.d.Durable(); now == step { // otherwise the step may have been removed meanwhile
			f.t.Fatalf("step %d is recorded: %v", step, err)
		}
	}
}

// held returns the newest step in memory.
func (f *faulty) held() uint64 {
	return uint64(restore.Last(protocoltest.FirstBranch(f.pods[0].sealed(0)...)).Step)
}

var faults = []struct {
	name string
	fault
	note string
}{
	{"no space", fault{op: "write", err: syscall.ENOSPC}, "storage is full"},
	{"writes fail", fault{op: "write", err: syscall.EIO}, "storage cannot be used"},
	{"no space at sync", fault{op: "fsync", err: syscall.ENOSPC}, "storage is full"},
	{"sync fails", fault{op: "fsync", err: syscall.EIO}, "storage cannot be used"},
	{"sync of the folder fails", fault{op: "fsyncdir", err: syscall.EIO}, "storage cannot be used"},
	{"rename fails", fault{op: "rename", err: syscall.EIO}, "storage cannot be used"},
	{"no space at rename", fault{op: "rename", err: syscall.ENOSPC}, "storage is full"},
	{"no file can be made", fault{op: "create", err: syscall.EDQUOT}, "storage is full"},
}

// TestStorageFails: while storage fails, every save is kept in memory as before, no partial step is recorded, and users get a note. After
// the fault the next step becomes durable without a restart.
func TestStorageFails(t *testing.T) {
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			before := f.pace()
			f.folder.begin(tt.fault)
			f.watchSaves(before, func() { f.awaitNote(tt.note) })
			f.checkStored(f.c.Report(f.pods[0].Name).Generation)
			durable, _ := f.d.Durable()
			if f.held() <= durable {
				t.Errorf("memory holds step %d, storage %d", f.held(), durable)
			}
			f.folder.lift()
			f.awaitDurable()
			f.awaitNoNote()
			f.checkStored(f.c.Report(f.pods[0].Name).Generation)
		})
	}
}

// TestStorageHangs: a write never returns, and no kill ends it. It blocks neither training nor the agent. If the agent is killed meanwhile,
// the next agent takes over. The pod ends in time, and the next pod resumes from storage.
func TestStorageHangs(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	defer f.folder.lift() // before the pod's leftovers are checked
	pod := f.pods[0]
	before := f.pace()
	f.folder.begin(fault{op: "write", hangs: true})
	f.folder.awaitMet(t)
	f.watchSaves(before, func() { f.awaitNote("storage does not answer") })
	generation := f.c.Report(pod.Name).Generation

	incarnation := f.c.Report(pod.Name).Incarnation
	if err := syscall.Kill(pod.AgentPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.c.Await(t, pod.Name, "comes from a new agent", func(r *v1.Report) bool { return r.Incarnation > incarnation })
	f.watchSaves(before, func() {})
	if now := f.c.Report(pod.Name).Generation; now != generation {
		t.Errorf("generation %d, at the agent's death it was %d", now, generation)
	}

	began := time.Now()
	_ = pod.Init.Process.Signal(syscall.SIGTERM)
	pod.Wait()
	if took := time.Since(began); took > mostEnd {
		t.Errorf("the pod ended %s after SIGTERM", took)
	} else {
		t.Logf("the pod ended %s after SIGTERM", took.Round(time.Millisecond))
	}
	durable, _ := f.d.Durable()
	f.checkStored(generation)

	pod.loseMemory(t)
	f.folder.lift()
	f.c.Forget(pod.Name)
	pod.start()
	now, _ := f.running(generation)
	if start := f.checkRestart(now+1<<40, now, durable); start != durable {
		t.Errorf("generation %d began after step %d, durable was %d", now, start, durable)
	}
	f.awaitDurable()
	f.checkStored(now)
}

// TestStorageIsSlow: writes take twenty times as long. No save is lost, and steps become durable less often.
func TestStorageIsSlow(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	before := f.pace()
	f.folder.begin(fault{op: "write", slower: 20})
	f.folder.awaitMet(t)
	f.watchSaves(before, func() { f.awaitDurable() })
	f.checkStored(f.c.Report(f.pods[0].Name).Generation)
}
