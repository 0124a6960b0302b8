//go:build linux

package proc

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EndAll ends every process that has mark in its environment or belongs to the session of one of the ranks, except those in spared
// sessions, and returns when none is left. With grace it first sends SIGTERM to those of the sessions that handle it (asked), and waits for
// them only. It returns the pids of the ranks that it waited for.
//
// A process escapes only if it has left its session and its environment, or hides its environment from this process, or execs outside of
// its session for longer than execTimeout. hidden returns, with their starts, the processes whose marked environment only another user can
// read.
func EndAll(mark string, ranks []Process, spared []int, grace time.Duration, hidden ...func() map[int]uint64) (waited []int) {
	var sessions []int
	for _, p := range ranks {
		st, err := readStat(p.PID)
		for ; isForNow(err); st, err = readStat(p.PID) {
			time.Sleep(blind)
		}
		// The kernel does not reuse the pid of a living session: if another process has it, the rank's session is gone.
		if p.PID > 1 && (err != nil || st.start == p.Start) {
			sessions = append(sessions, p.PID)
		}
	}
	if grace > 0 {
		waited = askSessions(sessions, grace)
	}
	killSessions(sessions)    // the common case first, before a search for strays
	late := false             // execTimeout is over
	known := map[int]uint64{} // strays by start: a dying one shows no environment
	meant := func(pid int, st stat) (bool, error) {
		if slices.Contains(spared, st.session) || st.kernel {
			return false, nil
		}
		if start, ok := known[pid]; ok && start == st.start || slices.Contains(sessions, st.session) {
			return true, nil
		}
		marked, err := isMarked(pid, st, mark)
		if marked {
			known[pid] = st.start
		}
		if late && errors.Is(err, errExec) {
			err = nil
		}
		return marked, err
	}
	var since time.Time // when the search first found none
	killUntilNone(func() ([]int, bool) {
		late = !since.IsZero() && time.Since(since) > execTimeout
		for _, look := range hidden {
			maps.Copy(known, look())
		}
		left, ok := find(meant)
		switch {
		case len(left) > 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		return left, ok
	})
	return waited
}

// askSessions sends SIGTERM to what handles it and waits for it. Sessions in which nothing does are killed at once.
func askSessions(sessions []int, grace time.Duration) (waited []int) {
	deadline := time.Now().Add(grace)
	living := sessionsOf(sessions)
	var all, quiet []int
	for _, s := range sessions {
		if who := asked(s, living[s]); len(who) > 0 {
			waited, all = append(waited, s), append(all, who...)
		} else {
			quiet = append(quiet, s)
		}
	}
	killSessions(quiet)
	ask(all, time.Until(deadline))
	return waited
}

// sessionsOf returns the living processes of each session.
func sessionsOf(sessions []int) map[int]map[int]stat {
	for {
		living := map[int]map[int]stat{}
		_, ok := find(func(pid int, st stat) (bool, error) {
			if slices.Contains(sessions, st.session) {
				if living[st.session] == nil {
					living[st.session] = map[int]stat{}
				}
				living[st.session][pid] = st
			}
			return false, nil
		})
		if ok {
			return living
		}
		time.Sleep(blind)
	}
}

// killSessions kills each session, but not yet the processes that remove what others leave (keeps).
func killSessions(sessions []int) {
	living := sessionsOf(sessions)
	for _, s := range sessions {
		pids := slices.Collect(maps.Keys(living[s]))
		others := slices.DeleteFunc(slices.Clone(pids), keeps)
		if len(others) == len(pids) { // atomically, with what is being forked
			others = []int{-s}
		}
		for _, pid := range others {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// blind is the pause after a look that could not read everything.
const blind = 10 * time.Millisecond

// execTimeout bounds the wait, after the last other process has ended, for one that shows no environment: some never show it.
const execTimeout = time.Second

// killUntilNone kills what look finds until two looks in a row find nothing: a process that was forked unseen during the first has an
// ancestor that the first saw, or is itself seen by the second. A look that returns false could not read everything and counts as having
// found something. Processes that remove what others leave (keeps) are killed last, after keeperTimeout.
func killUntilNone(look func() ([]int, bool)) {
	var until time.Time // until when keepers are spared; zero: others still live
	for empty := 0; empty < 2; {
		left, ok := look()
		if ok && len(left) == 0 {
			empty++
			continue
		}
		empty = 0
		others := slices.DeleteFunc(slices.Clone(left), keeps)
		if len(others) == 0 && len(left) > 0 {
			if until.IsZero() {
				until = time.Now().Add(keeperTimeout)
			}
			awaitAll(left, time.Until(until))
			if time.Now().Before(until) {
				continue
			}
			others = left
		}
		for _, pid := range others {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		awaitAll(others, time.Second)
		if !ok {
			time.Sleep(blind)
		}
	}
}

// find returns the living processes, except this one, for which meant is true; ok is false if some could not be read.
func find(meant func(pid int, st stat) (bool, error)) (found []int, ok bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, !isForNow(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	ok = !isForNow(err)
	self := os.Getpid()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		st, err := readStat(pid)
		is := false
		if err == nil && !st.dead() {
			is, err = meant(pid, st)
		}
		if is {
			found = append(found, pid)
		}
		ok = ok && !isForNow(err)
	}
	return found, ok
}

// errExec: the process is in execve, and shows neither its old nor its new environment.
var errExec = errors.New("the process is starting another program")

// isForNow reports whether an error is temporary: no descriptors or memory, or the process is in execve. Any other error lasts: the process
// has ended, or this process may not read it.
func isForNow(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, errExec)
}

// mostEnviron exceeds any environment: the kernel allows 6 MiB, with arguments.
const mostEnviron = 8 << 20

// isMarked reports whether a process has the mark in its environment.
func isMarked(pid int, st stat, mark string) (bool, error) {
	if st.environ > mostEnviron {
		return false, nil // its environment is empty
	}
	f, err := os.Open(aliveThread(pid, st) + "/environ")
	if errors.Is(err, syscall.ESRCH) {
		return false, errExec // a dying process shows none either, and is soon gone
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	size := st.environ + 1
	if st.environ < 0 {
		size = 256 << 10 // on kernels that do not report the size; larger ones are rare
	}
	raw := make([]byte, size)
	n, err := f.Read(raw) // in one read: a second one may read another program's
	if err != nil && err != io.EOF && !errors.Is(err, syscall.ESRCH) {
		return false, err
	}
	want := []byte(EnvMark + "=" + mark)
	for variable := range bytes.SplitSeq(raw[:n], []byte{0}) {
		if bytes.Equal(variable, want) {
			return true, nil
		}
	}
	if n == size || n == 0 && st.environ != 0 { // it has grown, or cannot be read for now
		return false, errExec
	}
	return false, nil
}

// aliveThread returns the /proc folder of a thread that a process still has: the first thread may have ended before the others.
func aliveThread(pid int, st stat) string {
	dir := "/proc/" + strconv.Itoa(pid)
	if st.state == 'Z' {
		if threads, err := os.ReadDir(dir + "/task"); err == nil && len(threads) > 0 {
			return dir + "/task/" + threads[len(threads)-1].Name()
		}
	}
	return dir
}

// awaitAll waits until all of the processes have ended, at most for timeout.
func awaitAll(pids []int, timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ENOSYS || err == unix.EPERM {
			awaitByLooks(pid, deadline)
		}
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

// awaitByLooks polls, for kernels before Linux 5.3, which lack pidfd_open(2); a zero deadline: without end.
func awaitByLooks(pid int, deadline time.Time) {
	begun, err := readStat(pid)
	for err == nil && !begun.dead() && (deadline.IsZero() || time.Now().Before(deadline)) {
		time.Sleep(2 * blind)
		var now stat
		if now, err = readStat(pid); err == nil && now.start != begun.start {
			return
		}
		begun = now
	}
}
