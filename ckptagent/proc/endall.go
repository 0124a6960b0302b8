//go:build linux

package proc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EndAll ends every process that carries mark in its environment or belongs to the session of one of the ranks, except
// those of the spared sessions, and returns when none is left. With grace it asks the sessions by SIGTERM first, and
// waits for them. Strays are neither asked nor waited for.
//
// A process escapes only by leaving both its session and its environment behind, by not showing its environment to this one, or by
// being between two programs for longer than execTimeout outside of its session.
func EndAll(mark string, ranks []Process, spared []int, grace time.Duration) {
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
	if grace > 0 {
		for _, s := range sessions {
			_ = syscall.Kill(-s, syscall.SIGTERM)
			_ = syscall.Kill(-s, syscall.SIGCONT)
		}
		deadline := time.Now().Add(grace)
		for time.Now().Before(deadline) {
			left, ok := find(func(_ int, st stat) (bool, error) { return slices.Contains(sessions, st.session), nil })
			if ok && len(left) == 0 {
				break
			}
			if !ok {
				time.Sleep(blind)
			}
			awaitAll(left, time.Until(deadline))
		}
	}
	for _, s := range sessions { // the common case at once, before looking for strays
		_ = syscall.Kill(-s, syscall.SIGKILL)
	}
	var since time.Time // when a look first found nothing more
	killUntilNone(func() ([]int, bool) {
		late = !since.IsZero() && time.Since(since) > execTimeout
		left, ok := find(meant)
		switch {
		case len(left) > 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		return left, ok
	})
}

// blind is how long is waited where a look could not see everything.
const blind = 10 * time.Millisecond

// execTimeout bounds how long a process that shows no environment is waited for after the last end of another: some never show one.
const execTimeout = time.Second

// killUntilNone kills what look finds until two looks in a row find nothing: a process that was born behind the back of the
// first has an ancestor that either was seen by it or is seen, with its descendants, by the second. A look that could not see
// everything, which it says by false, found something.
func killUntilNone(look func() ([]int, bool)) {
	for empty := 0; empty < 2; {
		left, ok := look()
		if ok && len(left) == 0 {
			empty++
			continue
		}
		empty = 0
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		awaitAll(left, time.Second)
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

// isForNow says whether something may be there that could not be read just now, for lack of descriptors or memory or because the process
// starts another program. Any other error lasts: the process has ended, or is not shown to this one.
func isForNow(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, errExec)
}

// mostEnviron is more than any program is started with: the kernel allows 6 MiB, arguments included.
const mostEnviron = 8 << 20

// isMarked says whether a process carries the mark in its environment.
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

// awaitAll waits until all of the processes have ended, at most for timeout.
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
