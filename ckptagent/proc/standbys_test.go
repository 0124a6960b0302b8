//go:build linux

package proc

import (
	"os"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/launch"
)

// TestStandbysAreOffWhereMemoryIsShort: none is started that the container's memory does not hold, people are told why, and a
// rank starts cold; as soon as there is room there are standbys.
func TestStandbysAreOffWhereMemoryIsShort(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	job := Job{
		Root: Root(t.TempDir()), Mark: newMark(), Own: readLimits(), Launch: &Launch{Files: [3]*os.File{null, null, null}, Limits: readLimits()},
		Spec: launch.Spec{Ranks: 2, NoPython: true, Script: "/bin/sh", Args: []string{"-c", "exec sleep 1000"}},
	}
	run := ckptagent.Run{Number: 1, WorldSize: 2, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: 4000}
	room := uint64(standbyMemory - 1<<20)
	// Without the loop: looks are taken here, one at a time.
	s := &Standbys{changed: func(int, bool) {}, share: newShare(), room: func() (uint64, bool) { return room, true }, need: standbyMemory, cost: warmCost, wake: make(chan struct{}, 1)}
	t.Cleanup(s.Close)
	s.Configure(job, "")
	s.SetModules([]string{"torch"})
	s.SetWarm(true, run)

	now := time.Now()
	for range 3 {
		if wait := s.look(now); wait != memoryRetry {
			t.Fatalf("the next look is in %s, want %s", wait, memoryRetry)
		}
		now = now.Add(memoryRetry)
	}
	if got := s.Processes(); len(got) != 0 {
		t.Fatalf("started although memory is short: %v", got)
	}
	if note := s.Note(); !strings.Contains(note, "one needs 400 MiB and the container's memory limit leaves 399 MiB") || !strings.Contains(note, "holdfast.dev/standby-memory") {
		t.Errorf("people are told %q", note)
	}
	if _, _, ok := s.Take(run, 0); ok {
		t.Error("a standby was taken where there is none")
	}
	cold, err := job.Start(run, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cold.Wait(nil)
	defer cold.Kill()
	if !cold.Alive() {
		t.Error("the rank does not run cold")
	}

	room = standbyMemory
	s.look(now)
	if got, note := s.Processes(), s.Note(); len(got) != 1 || note != "" {
		t.Fatalf("where one more fits, there are %v, and people are told %q", got, note)
	}
	// From now on what the first one takes is known: the second one does not fit, and the first one stays.
	first := s.slots[0]
	s.heard(first, readyLine{Ready: true, PID: first.process.PID, RSS: 1000 << 20})
	if wait := s.look(now); wait != memoryRetry || len(s.Processes()) != 1 {
		t.Errorf("a second standby: %v, the next look in %s", s.Processes(), wait)
	}
	if note := s.Note(); !strings.Contains(note, "one needs 1100 MiB and the container's memory limit leaves 400 MiB") {
		t.Errorf("people are told %q", note)
	}
	if _, _, ok := s.Take(run, 1); ok {
		t.Error("a standby was taken for a rank that has none")
	}
	p, ended, ok := s.Take(run, 0)
	if !ok || p.PID != first.process.PID {
		t.Fatalf("the standby that is ready was not taken: %v", p)
	}
	p.Kill()
	<-ended

	// Where nothing limits memory, none is short.
	s.room = func() (uint64, bool) { return 0, false }
	s.look(now)
	if got, note := s.Processes(), s.Note(); len(got) != 1 || note != "" {
		t.Errorf("without a limit there are %v, and people are told %q", got, note)
	}
}
