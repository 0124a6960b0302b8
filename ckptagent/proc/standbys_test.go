//go:build linux

package proc

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestStandbysAreOffWhereMemoryIsShort: no standby is started that exceeds the container's memory. A note gives the reason, and the rank
// starts cold. Once there is memory, standbys are started.
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
	run := protocol.Run{Number: 1, WorldSize: 2, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: 4000}
	room := uint64(ampleMemory - 1<<20)
	// Standbys without their loop: the test calls look itself.
	s := &Standbys{
		changed: func(int, bool) {},
		share:   newShare(),
		room:    func() (uint64, bool) { return room, true },
		cost:    warmCost,
		wake:    make(chan struct{}, 1),
	}
	t.Cleanup(s.Close)
	s.Configure(job, "")
	s.serving, s.servingWhy = servesRank, "a module reads RANK"
	s.SetModules([]string{"torch"}, 0)
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
	if note := s.Note(); !strings.Contains(note, "for which 576 MiB are kept, and the container's memory limit leaves 575 MiB") || !strings.Contains(note, "because a module reads RANK") || !strings.Contains(note, "holdfast.dev/standby-memory") {
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

	room = ampleMemory
	s.look(now)
	if got, note := s.Processes(), s.Note(); len(got) != 1 || note != "" {
		t.Fatalf("where one more fits, there are %v, and people are told %q", got, note)
	}
	// From now on the memory of the first source is known. The second one does not fit, and the first one stays.
	first := s.slots[0]
	s.onSourceMessage(first.source, warmLine{Warm: true, Memory: 1000 << 20})
	s.onStandbyMessage(first, readyLine{Ready: true, PID: first.source.process.PID, Learned: 1})
	if wait := s.look(now); wait != memoryRetry || len(s.Processes()) != 1 {
		t.Errorf("a second standby: %v, the next look in %s", s.Processes(), wait)
	}
	if note := s.Note(); !strings.Contains(note, "one needs 1164 MiB and the container's memory limit leaves 576 MiB") {
		t.Errorf("people are told %q", note)
	}
	if _, _, ok := s.Take(run, 1); ok {
		t.Error("a standby was taken for a rank that has none")
	}
	p, ended, ok := s.Take(run, 0)
	if !ok || p.PID != first.source.process.PID {
		t.Fatalf("the standby that is ready was not taken: %v", p)
	}
	p.Kill()
	<-ended

	// Without a memory limit memory is never short.
	s.room = func() (uint64, bool) { return 0, false }
	s.look(now)
	if got, note := s.Processes(), s.Note(); len(got) != 1 || note != "" {
		t.Errorf("without a limit there are %v, and people are told %q", got, note)
	}
}

// bare returns standbys of two ranks whose sources are shells, without the loop: the test calls look itself.
func bare(t *testing.T, shell string) *Standbys {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	job := Job{
		Root: Root(t.TempDir()), Mark: newMark(), Own: readLimits(), Launch: &Launch{Files: [3]*os.File{null, null, null}, Limits: readLimits()},
		Spec: launch.Spec{Ranks: 2, NoPython: true, Script: "/bin/sh", Args: []string{"-c", shell}},
	}
	if err := os.MkdirAll(string(job.Root)+"/run", 0o755); err != nil {
		t.Fatal(err)
	}
	s := &Standbys{
		changed: func(int, bool) {},
		share:   newShare(),
		room:    func() (uint64, bool) { return 0, false },
		cost:    warmCost,
		wake:    make(chan struct{}, 1),
	}
	t.Cleanup(func() {
		s.Close()
		EndAll(job.Mark, nil, nil, 0)
		null.Close()
	})
	s.Configure(job, "")
	s.SetModules([]string{"torch"}, 0)
	s.SetWarm(true, protocol.Run{Number: 1, WorldSize: 2, Nodes: 1, MasterAddr: "127.0.0.1", MasterPort: 4000})
	return s
}

// sourcesNow returns the present sources, for a test that waits.
func (s *Standbys) sourcesNow() []*source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sources()
}

// standbyNow returns the present standby of a rank, for a test that watches its end.
func (s *Standbys) standbyNow(local int) standby {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.slots[local]
}

// copied starts a process that counts as a forked standby, and returns once the process can be seen to belong to the job. A real fork can
// be from the start, because it executes no other program.
func (s *Standbys) copied(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "1000")
	c.SysProcAttr, c.Env = &syscall.SysProcAttr{Setsid: true}, append(os.Environ(), EnvMark+"="+s.job.Mark)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Wait() })
	t.Cleanup(func() { _ = c.Process.Kill() })
	eventually.Holds(t, "the process shows its mark", func() (bool, any) {
		st, err := readStat(c.Process.Pid)
		if err != nil {
			return false, err
		}
		marked, err := isMarked(c.Process.Pid, st, s.job.Mark)
		return marked, err
	})
	return c
}

// TestASourceThatDiesIsRetriedLater: a source that dies is started again after a pause that grows each time, whether it serves all ranks or
// one. It fails only after the test has seen it, because a shell can end before the call that started it returns.
func TestASourceThatDiesIsRetriedLater(t *testing.T) {
	for what, shell := range map[string]string{"dies": "exit 1", "says what nobody understands": "echo '{' >&3; exec sleep 1000", "says too much": "while :; do printf %4096d 1 >&3; done"} {
		t.Run(what, func(t *testing.T) {
			seen := t.TempDir() + "/seen"
			s := bare(t, "until rm "+seen+" 2>/dev/null; do sleep 0.01; done; "+shell)
			now := time.Now()
			for wait := standbyRetry; wait <= 4*standbyRetry; wait *= 2 {
				s.look(now)
				if got := len(s.sourcesNow()); got != 1 {
					t.Fatalf("%d sources", got)
				}
				began := time.Now()
				if err := os.WriteFile(seen, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				eventually.Holds(t, "has failed", func() (bool, any) { now := s.sourcesNow(); return len(now) == 0, now })
				over := time.Now() // the source failed at some moment between the two
				if next := s.look(began); next < wait || next > wait+over.Sub(began) || len(s.sourcesNow()) != 0 {
					t.Fatalf("the next look is in %s, want %s; %d sources", next, wait, len(s.sourcesNow()))
				}
				now = over.Add(wait)
			}
		})
	}
}

// TestACopyThatIsHeardLateIsStale: a standby that was forked before its source imported more modules is replaced, even if its message is
// read after that of its source.
func TestACopyThatIsHeardLateIsStale(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	now := time.Now()
	s.look(now)
	src := s.slots[0].source
	s.onSourceMessage(src, warmLine{Warm: true})
	s.SetModules([]string{"torch", "numpy"}, 0)
	s.look(now) // has it learn more
	var copies [2]int
	ended := make(chan error, 2)
	for i := range copies {
		c := s.copied(t)
		copies[i] = c.Process.Pid
		go func() { ended <- c.Wait() }()
	}
	s.onSourceMessage(src, warmLine{Warm: true})
	s.onStandbyMessage(s.slots[0], readyLine{Ready: true, PID: copies[0], Learned: 1})
	if b := s.standbyNow(0); b.state != standbyStale {
		t.Errorf("state %d", b.state)
	}
	s.look(now)
	select {
	case <-ended:
	case <-time.After(eventually.Timeout):
		t.Error("the copy stays")
	}
	s.onStandbyMessage(s.slots[1], readyLine{Ready: true, PID: copies[1], Learned: 2})
	if b := s.standbyNow(1); b.state != standbyReady {
		t.Errorf("a new copy: state %d", b.state)
	}
}

// TestAStandbySaysItsOwnPid: the agent will kill the pid that a standby reports, with its session. So it accepts only a process of the job,
// in a session of its own.
func TestAStandbySaysItsOwnPid(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	s.look(time.Now())
	child := exec.Command("sleep", "1000")
	child.Env = append(os.Environ(), EnvMark+"="+s.job.Mark)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = child.Process.Wait() })
	t.Cleanup(func() { _ = child.Process.Kill() })
	for name, pid := range map[string]int{"init's": 1, "none": 0, "all": -1, "its source's, which serves two ranks": s.slots[0].source.process.PID, "another session's": child.Process.Pid, "another job's": sh(t, "exec sleep 1000").PID} {
		s.onStandbyMessage(s.slots[0], readyLine{Ready: true, PID: pid, Learned: 1})
		if b := s.standbyNow(0); b.waits() || b.rank != (Process{}) {
			t.Errorf("%s pid: state %d, %v", name, b.state, b.rank)
		}
	}
	s.onStandbyMessage(s.slots[0], readyLine{Ready: true, PID: s.copied(t).Process.Pid, Learned: 1})
	if b := s.standbyNow(0); b.state != standbyReady {
		t.Error("a copy is not believed")
	}
}

// TestASourceThatHangsIsWaitedForOnce: a source that imports half of its modules and then hangs is ended after one generation has waited
// for it. No generation waits for its successor before that has imported its modules.
func TestASourceThatHangsIsWaitedForOnce(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	now := time.Now()
	s.look(now)
	first := s.slots[0].source
	s.onSourceMessage(first, warmLine{Half: true})
	over := s.Await()
	if over == nil {
		t.Fatal("does not wait for a source that has half")
	}
	since := s.awaited.since
	s.look(since.Add(importTimeout - time.Second))
	if got := s.sourcesNow(); len(got) != 1 {
		t.Fatalf("%d sources while it waits", len(got))
	}
	now = since.Add(importTimeout)
	s.look(now)
	<-over
	if got := s.sourcesNow(); len(got) != 0 {
		t.Fatalf("%d sources after it has waited", len(got))
	}
	s.look(now.Add(standbyRetry))
	second := s.slots[0].source
	s.onSourceMessage(second, warmLine{Half: true})
	if s.Await() != nil {
		t.Error("waits for another one")
	}
	s.onSourceMessage(second, warmLine{Warm: true})
	if s.Await() == nil {
		t.Error("does not wait for copies of one that has imported")
	}
	s.Forgo()
	s.SetModules([]string{"torch", "numpy"}, 0)
	s.renew(now)
	s.onSourceMessage(second, warmLine{Half: true})
	if s.failures[0] != 0 || s.Await() == nil {
		t.Error("does not wait for one that has imported before")
	}
}

// TestModulesAreProvenByASourceThatIsCopied: modules count as proven once a source that can be forked has imported them. The next agent
// reads that from a file.
func TestModulesAreProvenByASourceThatIsCopied(t *testing.T) {
	for alone, want := range map[string]bool{"": true, "a module reads RANK": false} {
		s := bare(t, "exec sleep 1000")
		noted := func() bool {
			_, err := os.Stat(s.job.Root.ProvenModulesFile())
			return err == nil
		}
		s.look(time.Now())
		if noted() || s.Known() != nil {
			t.Error("proven before a source has imported")
		}
		s.onSourceMessage(s.slots[0].source, warmLine{Warm: true, Alone: alone})
		if noted() != want || (s.Known() != nil) != want {
			t.Errorf("alone %q: noted %v, known %v", alone, noted(), s.Known())
		}
	}
}

// TestUnfitModulesAreLeftOut: modules that a source finds unusable are not imported by the next one. A note has the modules and the reason.
// If the next source finds the same modules unusable, standbys are switched off.
func TestUnfitModulesAreLeftOut(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	s.job.Skip = []string{"wandb"}
	s.look(time.Now())
	first := s.sourcesNow()[0]
	unfit := warmLine{Warm: true, Without: []string{"trainer", "comms", "no module"}, Why: "module comms, which the script imports, reads MASTER_ADDR"}
	s.onSourceMessage(first, unfit)
	if len(s.sourcesNow()) != 0 || !slices.Equal(s.skipped(), []string{"wandb", "trainer", "comms"}) {
		t.Fatalf("sources %v, skipped %q", s.sourcesNow(), s.skipped())
	}
	if note := s.Note(); !strings.Contains(note, unfit.Why) || !strings.Contains(note, "holdfast.dev/standby-skip-modules") {
		t.Errorf("the note is %q", note)
	}
	s.look(time.Now())
	again := s.sourcesNow()
	if len(again) != 1 || again[0] == first {
		t.Fatalf("sources %v", again)
	}
	s.onSourceMessage(again[0], unfit)
	if note := s.Note(); note != "standbys are off: "+unfit.Why || len(s.sourcesNow()) != 0 {
		t.Errorf("the note is %q, sources %v", note, s.sourcesNow())
	}
}

// TestASourceNeedsWhatImportsTookInARank: until a source has reported its memory, its need is estimated as the memory that the imports took
// in a rank.
func TestASourceNeedsWhatImportsTookInARank(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	s.SetModules([]string{"torch", "numpy"}, 300<<20)
	need := uint64(330<<20 + memoryReserve)
	room := need - 1
	s.room = func() (uint64, bool) { return room, true }
	now := time.Now()
	if wait := s.look(now); wait != memoryRetry || !strings.Contains(s.Note(), "one needs 394 MiB and the container's memory limit leaves 393 MiB") {
		t.Errorf("the next look is in %s; the note is %q", wait, s.Note())
	}
	room = need
	s.look(now.Add(memoryRetry))
	sources := s.sourcesNow()
	if len(sources) != 1 {
		t.Fatalf("%d sources where one fits; the note is %q", len(sources), s.Note())
	}
	s.onSourceMessage(sources[0], warmLine{Warm: true, Memory: 400 << 20})
	if s.SetModules([]string{"a", "b", "c"}, 300<<20); s.lacksRoom() == "" {
		t.Error("what a rank took is preferred to what a source took")
	}
}

// TestStandbysYieldMemory: when the container's memory use is near its limit, sources and standbys are ended, with a note. None is started
// until there is memory.
func TestStandbysYieldMemory(t *testing.T) {
	s := bare(t, "exec sleep 1000")
	room := uint64(ampleMemory)
	s.room = func() (uint64, bool) { return room, true }
	now := time.Now()
	s.look(now)
	if len(s.sourcesNow()) != 1 {
		t.Fatal("no source where there is room")
	}
	room = memoryReserve
	if s.look(now.Add(memoryLook)); len(s.sourcesNow()) != 1 {
		t.Fatal("ended although the reserve is there")
	}
	room--
	if wait := s.look(now.Add(2 * memoryLook)); wait != memoryRetry || len(s.sourcesNow()) != 0 {
		t.Fatalf("%d sources live on, the next look is in %s", len(s.sourcesNow()), wait)
	}
	if note := s.Note(); !strings.Contains(note, "limit left 63 MiB") || !strings.Contains(note, "holdfast.dev/standby-memory") {
		t.Errorf("the note is %q", note)
	}
	room = ampleMemory
	if s.look(now.Add(2*memoryLook + memoryRetry)); len(s.sourcesNow()) != 1 || s.Note() != "" {
		t.Errorf("%d sources where there is room again; the note is %q", len(s.sourcesNow()), s.Note())
	}
}
