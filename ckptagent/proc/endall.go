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

// EndAll ends every process that carries mark in its environment or belongs to the session of one of the ranks, except those of the
// spared sessions, and returns when none is left. With grace it first sends SIGTERM to those of the sessions that handle it
// (asked), and waits for them; it does not wait for others. It returns the pids of the ranks that were.
//
// A process escapes only by leaving both its session and its environment behind, by not showing its environment to this one, or by being
// between two programs for longer than execTimeout outside of its session. hidden lists, with their starts, those that carry the mark and
// show it to another user alone.
func EndAll(mark string, ranks []Process, spared []int, grace time.Duration, hidden ...func() map[int]uint64) (waited []int) {
	var sessions []int
	for _, p := range ranks {
		st, err := readStat(p.PID)
		for ; isForNow(err); st, err = readStat(p.PID) {
			time.Sleep(blind)
		}
		// No process gets the pid of a session that there is: where another one has it, nothing is left of the rank's.
		if p.PID > 1 && (err != nil || st.start == p.Start) {
			sessions = append(sessions, p.PID)
		}
	}
	if grace > 0 {
		waited = askSessions(sessions, grace)
	}
	killSessions(sessions)    // the common case at once, before looking for strays
	late := false             // no process between two programs is waited for any more
	known := map[int]uint64{} // when strays were started: while they end they show nothing
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
	var since time.Time // when a look first found nothing more
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

// askSessions asks what handles SIGTERM and waits for it. Sessions in which nothing does are killed at once.
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

// sessionsOf lists the living processes of each session.
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

// killSessions kills all of each session but processes that have yet to remove what the others leave.
func killSessions(sessions []int) {
	living := sessionsOf(sessions)
	for _, s := range sessions {
		pids := slices.Collect(maps.Keys(living[s]))
		others := slices.DeleteFunc(slices.Clone(pids), keeps)
		if len(others) == len(pids) { // at once, also what is being forked
			others = []int{-s}
		}
		for _, pid := range others {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// blind is how long is waited where a look could not see everything.
const blind = 10 * time.Millisecond

// execTimeout bounds how long a process that shows no environment is waited for after the last end of another: some never show one.
const execTimeout = time.Second

// killUntilNone kills what look finds until two looks in a row find nothing: a process that was born behind the back of the first has an
// ancestor that either was seen by it or is seen, with its descendants, by the second. A look that could not see everything, which it says
// by false, found something. What removes what the others leave (keeps) is killed last, and has keeperTimeout before.
func killUntilNone(look func() ([]int, bool)) {
	var until time.Time // keepers are spared; zero: all others live yet
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

// find lists the living processes, but for this one, that are meant; false: there may be others.
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

// errExec: the process starts another program, and shows neither that one's environment yet nor the one that it had.
var errExec = errors.New("the process is starting another program")

// isForNow reports whether something may be there that could not be read just now, for lack of descriptors or memory or because the process
// starts another program. Any other error lasts: the process has ended, or is not shown to this one.
func isForNow(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, errExec)
}

// mostEnviron is more than any program is started with: the kernel allows 6 MiB, arguments included.
const mostEnviron = 8 << 20

// isMarked reports whether a process carries the mark in its environment.
func isMarked(pid int, st stat, mark string) (bool, error) {
	if st.environ > mostEnviron {
		return false, nil // it has said so of itself
	}
	f, err := os.Open(aliveThread(pid, st) + "/environ")
	if errors.Is(err, syscall.ESRCH) {
		return false, errExec // what ends shows none either, and is gone a moment later
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	size := st.environ + 1
	if st.environ < 0 {
		size = 256 << 10 // where it is never said, as on kernels that are no Linux, few have more
	}
	raw := make([]byte, size)
	n, err := f.Read(raw) // in one go: what is read later may be another program's
	if err != nil && err != io.EOF && !errors.Is(err, syscall.ESRCH) {
		return false, err
	}
	want := []byte(EnvMark + "=" + mark)
	for variable := range bytes.SplitSeq(raw[:n], []byte{0}) {
		if bytes.Equal(variable, want) {
			return true, nil
		}
	}
	if n == size || n == 0 && st.environ != 0 { // there is more by now, or for now there is nothing
		return false, errExec
	}
	return false, nil
}

// aliveThread is where /proc shows a thread that a process still has: its first one may have ended before the others.
func aliveThread(pid int, st stat) string {
	dir := "/proc/" + strconv.Itoa(pid)
	if st.state == 'Z' {
		if threads, err := os.ReadDir(dir + "/task"); err == nil && len(threads) > 0 {
			return dir + "/task/" + threads[len(threads)-1].Name()
		}
	}
	return dir
}

// awaitAll waits until all of the processes have ended, or for as long as timeout.
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

// awaitByLooks is for kernels without pidfd_open(2), which came with Linux 5.3; zero: without end.
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
