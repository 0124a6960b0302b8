// Package hack has only tests of the shell scripts in this folder: a script that starts several processes must end all
// of them when the script ends.
package hack

import (
	"bufio"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// prepare and build replace what ready.sh starts. Each prints its name at its start, and waits in a child process. ready.sh must not
// interrupt a part that cannot be interrupted.
const (
	prepare = `#!/bin/bash
[ "$HOLDFAST_PREPARE" = install ] || exit 0
echo prepare
: >begun
case $CASE in
succeeds) exit 0 ;;
prepare-fails) exit 3 ;;
unpacks) (trap '' INT; exec sleep 1); bash -c 'sleep 300; true'; bash -c 'sleep 300; true' ;;
*) bash -c 'sleep 300; true' ;;
esac
`
	build = `#!/bin/bash
for verb; do :; done
echo "$verb"
case $CASE in
succeeds) exit 0 ;;
prepare-fails) [ "$verb" = static ] ;;
build-fails | unpacks) until [ -e begun ]; do sleep 0.1; done; exit 4 ;;
*) bash -c 'sleep 300; true' ;;
esac
`
)

// limit bounds every wait, on a very busy machine.
const limit = 2 * time.Minute

// TestReadyLeavesNothing: however ready.sh ends, all its processes have ended.
func TestReadyLeavesNothing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ready.sh prepares Linux alone")
	}
	for name, c := range map[string]struct {
		signal syscall.Signal
		exit   int
		says   []string // each once, in any order
	}{
		"succeeds":      {0, 0, []string{"prepare", "static", "holdfast-nvml"}},
		"build-fails":   {0, 4, []string{"prepare", "static"}},
		"prepare-fails": {0, 3, []string{"prepare", "static"}},
		"unpacks":       {0, 4, []string{"prepare", "static"}},
		"ctrl-c":        {syscall.SIGINT, 130, []string{"prepare", "static"}},
		"terminated":    {syscall.SIGTERM, 130, []string{"prepare", "static"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, said := ready(t, name)
			got := map[string]int{}
			if c.signal != 0 { // as soon as both have begun
				for range c.says {
					got[word(t, said)]++
				}
				if err := cmd.Process.Signal(c.signal); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait()
			if exit := cmd.ProcessState.ExitCode(); exit != c.exit {
				t.Errorf("it ended with %s, not with exit code %d", cmd.ProcessState, c.exit)
			}
			for w := word(t, said); w != ""; w = word(t, said) { // until end of file: a living process would hold the pipe open
				got[w]++
			}
			for _, w := range c.says {
				if got[w] != 1 || len(got) != len(c.says) {
					t.Errorf("%v was begun, not %v", got, c.says)
				}
			}
		})
	}
}

// ready runs ready.sh with the replacements, in a separate process group, as a shell does.
func ready(t *testing.T, name string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	dir := folder(t, "ready.sh", map[string]string{"hack/prepare.sh": prepare, "bin/make": build})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "hack/ready.sh"))
	cmd.Env = append(os.Environ(), "CASE="+name, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = w, os.Stderr, &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := r.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return cmd, bufio.NewScanner(r)
}

// word returns the next word of the output; "": no process can write any more.
func word(t *testing.T, said *bufio.Scanner) string {
	t.Helper()
	if said.Scan() {
		return said.Text()
	}
	if err := said.Err(); err != nil {
		t.Fatalf("something that was started lives yet, or never spoke: %v", err)
	}
	return ""
}

// folder returns a temporary folder with a script of this folder below hack, and with files that replace what it calls.
func folder(t *testing.T, script string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	files = maps.Clone(files)
	files["hack/"+script] = string(text)
	for file, text := range files {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		syscall.ForkLock.RLock() // a concurrent fork of another test would have the file open for writing, so that it could not be executed
		err := os.WriteFile(file, []byte(text), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
