package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// lowShare is a cgroup that, under contention, has a quarter of the share of all clusters (test/devcluster/host); with less, unit tests on
// a slow machine exceed their time limits. Nice values have no effect across sessions, because the kernel groups processes by session, and
// each trainer of a test is a session. They are used only if no cgroup can be created.
type lowShare struct{ dir string }

func newLowShare() lowShare {
	name := fmt.Sprintf("holdfast-checks-%d", os.Getpid())
	for _, c := range []struct{ dir, file, share string }{
		{"/sys/fs/cgroup/cpu", "cpu.shares", "2048"}, // version 1
		{"/sys/fs/cgroup", "cpu.weight", "200"},
	} {
		dir := filepath.Join(c.dir, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		_, err := os.Stat(filepath.Join(dir, "cgroup.procs"))
		if err == nil && os.WriteFile(filepath.Join(dir, c.file), []byte(c.share), 0) == nil {
			return lowShare{dir}
		}
		_ = os.Remove(dir)
	}
	return lowShare{}
}

// wrap returns the command, to be run with the share.
func (l lowShare) wrap(command []string) []string {
	if l.dir == "" {
		return append([]string{"nice", "-n", "19"}, command...)
	}
	return append([]string{"sh", "-c", "echo $$ >" + l.dir + "/cgroup.procs && exec \"$@\"", "sh"}, command...)
}

// remove kills the processes in it and removes it.
func (l lowShare) remove() {
	if l.dir == "" {
		return
	}
	for end := time.Now().Add(endTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		pids, _ := os.ReadFile(filepath.Join(l.dir, "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(pids)) {
			var n int
			if _, err := fmt.Sscan(pid, &n); err == nil && n > 0 { // 0: a process outside of this pid namespace
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		if os.Remove(l.dir) == nil || os.IsNotExist(os.Remove(l.dir)) {
			return
		}
	}
}
