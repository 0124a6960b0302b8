//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/eventually"
)

func TestRunningLooksThroughShells(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "inner")
	if err := os.WriteFile(script, []byte("#!/bin/sh -e\nsleep 1234\ntrue\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := sh(t, "sh -c '"+script+"; true'; true")
	c := Command{Argv: []string{"sh"}, Process: p}
	eventually.Holds(t, "the innermost program is seen", func() (bool, any) { got := c.Running(); return got == "sleep 1234", got })
	p.Kill()
	p.Wait(nil)
	if got := c.Running(); got != "" {
		t.Errorf("running: %q", got)
	}
}

// TestBelow: a process without its parent, its session or its environment is found if the ancestor is its reaper. For an ancestor that is
// not the caller's parent no descendants are returned.
func TestBelow(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	spared := sh(t, "sleep 1000 & wait")
	p := sh(t, "(setsid env -i sleep 1001 & exit) ; sleep 1002 & wait")
	has := func(words ...string) bool {
		var lines []string
		found, _ := below(os.Getpid(), spared.PID)
		for _, pid := range found {
			lines = append(lines, Line(commandLine(pid)))
		}
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(lines, w) })
	}
	eventually.Holds(t, "all are found", func() (bool, any) { return has("sleep 1000", "sleep 1001", "sleep 1002"), nil })
	if found, ok := below(p.PID, spared.PID); len(found) > 0 || !ok {
		t.Errorf("below what is not the spared process's parent there is %v, %t", found, ok)
	}
	found, _ := below(os.Getpid(), spared.PID)
	for _, pid := range found {
		if pid == spared.PID || pid == os.Getpid() || pid == 1 {
			t.Errorf("process %d is found", pid)
		}
		if strings.HasPrefix(Line(commandLine(pid)), "sleep 100") {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	p.Wait(nil)
}

func TestLine(t *testing.T) {
	for want, argv := range map[string][]string{
		"sh -c 'a && b'": {"sh", "-c", "a &&\n\tb"}, "python3 train.py": {"python3", "train.py"}, "": nil,
	} {
		if got := Line(argv); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Line([]string{strings.Repeat("ä", 500)}); len([]rune(got)) != maxLine {
		t.Errorf("%d letters", len([]rune(got)))
	}
}

func TestTimeoutReadsScripts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"run": "#!/usr/bin/env bash\nprep\nexec torchrun train.py\n", "tool": "#!/usr/bin/python3\n# torchrun\n", "env": "#!/bin/sh\n# torchrun, not used\ntrain\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := (Command{Argv: []string{"./tool"}, File: filepath.Join(dir, "tool")}).Timeout(); got != time.Minute {
		t.Errorf("a Python script's comment: %s", got)
	}
	for name, want := range map[string]time.Duration{"run": -1, "env": time.Minute} {
		c := Command{Argv: []string{name}, File: filepath.Join(dir, name)}
		if got, err := c.Timeout(); got != want || err != nil {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		c = Command{Argv: []string{"bash", filepath.Join(dir, name), "x"}, File: "/bin/bash"}
		if got, err := c.Timeout(); got != want || err != nil {
			t.Errorf("bash %s: %s, want %s", name, got, want)
		}
	}
}

func TestTimeoutIsSet(t *testing.T) {
	c := Command{Argv: []string{"torchrun", "train.py"}}
	for given, want := range map[string]time.Duration{"": -1, "0": 0, "90": 90 * time.Second, "1m": -1, "-3": -1} {
		t.Setenv(EnvTimeout, given)
		got, err := c.Timeout()
		if bad := want < 0 && given != ""; got != want || bad != (err != nil) {
			t.Errorf("%q: %s, %v", given, got, err)
		}
	}
}

func TestLeavingIsKept(t *testing.T) {
	root := Root(t.TempDir())
	if err := os.MkdirAll(root.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(root.ExitsFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	i, exits := &initProcess{root: root, exits: f}, NewExits(root, nil)
	i.record(7, 0)
	if _, ok := exits.Leaving(); ok {
		t.Error("nobody told it to go")
	}
	i.line("%d %d %d\n", leavingPID, 15, time.Now().UnixNano())
	i.record(8, 0)
	if sig, ok := exits.Leaving(); !ok || sig != 15 {
		t.Errorf("%d %v", sig, ok)
	}
}

// TestWhereAgentsCannotLive: init waits, for a limited time, for an agent that could continue a held command.
func TestWhereAgentsCannotLive(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		i    initProcess
		want bool
	}{
		"the agent lives":               {initProcess{agent: 5, agentStarted: now.Add(-steady), lived: now.Add(-time.Hour)}, false},
		"one died just now":             {initProcess{agentStarted: now.Add(-time.Hour), lived: now}, false},
		"they die for some minutes":     {initProcess{agent: 5, agentStarted: now, lived: now.Add(-agentlessWait + time.Second)}, false},
		"they die for long":             {initProcess{agent: 5, agentStarted: now, lived: now.Add(-agentlessWait)}, true},
		"none can be started, for long": {initProcess{agentStarted: now.Add(-time.Hour), lived: now.Add(-agentlessWait)}, true},
	} {
		if got := c.i.agentless(now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestEndBelowEndsNothingWithoutInit: without init no process is ended: neither those that this process has started nor those of its
// parent.
func TestEndBelowEndsNothingWithoutInit(t *testing.T) {
	beside := sh(t, "sleep 1000 & wait")
	for _, init := range []int{-1, 0, beside.PID} {
		EndBelow(init, Process{}, true, 0)
		if !beside.Alive() {
			t.Fatalf("with init %d it ended what it had to leave alone", init)
		}
	}
}
