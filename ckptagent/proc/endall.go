//go:build linux

package proc

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EndAll ends every process that carries mark in its environment or belongs to one of the sessions, except
// those of the spared sessions, and returns when none is left. With grace it asks the sessions by SIGTERM first, and
// waits for them; strays, which are not asked, are not waited for.
//
// A process escapes only by leaving both its session and its environment behind.
func EndAll(mark string, sessions, spared []int, grace time.Duration) {
	want := []byte(EnvMark + "=" + mark)
	meant := func(pid, session int) bool {
		return !slices.Contains(spared, session) && (slices.Contains(sessions, session) || hasVariable(pid, want))
	}
	if grace > 0 {
		for _, s := range sessions {
			_ = syscall.Kill(-s, syscall.SIGTERM)
			_ = syscall.Kill(-s, syscall.SIGCONT)
		}
		deadline := time.Now().Add(grace)
		for time.Now().Before(deadline) {
			left := find(func(_, session int) bool { return slices.Contains(sessions, session) })
			if len(left) == 0 {
				break
			}
			awaitAll(left, time.Until(deadline))
		}
	}
	for _, s := range sessions { // the common case at once, before looking for strays
		_ = syscall.Kill(-s, syscall.SIGKILL)
	}
	killUntilNone(func() []int { return find(meant) })
}

// killUntilNone kills what look finds until two looks in a row find nothing: a process that was born behind the back of the
// first has an ancestor that either was seen by it or is seen, with its descendants, by the second.
func killUntilNone(look func() []int) {
	for empty := 0; empty < 2; {
		left := look()
		if len(left) == 0 {
			empty++
			continue
		}
		empty = 0
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		awaitAll(left, time.Second)
	}
}

// find lists the living processes, but for this one, that are meant.
func find(meant func(pid, session int) bool) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	self := os.Getpid()
	var found []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		st, err := readStat(pid)
		if err == nil && !st.dead() && meant(pid, st.session) {
			found = append(found, pid)
		}
	}
	return found
}

func hasVariable(pid int, want []byte) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for kv := range bytes.SplitSeq(raw, []byte{0}) {
		if bytes.Equal(kv, want) {
			return true
		}
	}
	return false
}

// awaitAll waits until all of the processes have ended, or for as long as patience.
func awaitAll(pids []int, timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		for {
			left := time.Until(deadline)
			if left <= 0 {
				break
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err != unix.EINTR {
				break
			}
		}
		unix.Close(fd)
	}
}
