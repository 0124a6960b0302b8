//go:build linux

package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Snapshot is the state of all living processes at one moment.
type Snapshot map[int]stat

// Snap reads it. Processes that cannot be read are left out.
func Snap() Snapshot {
	s := Snapshot{}
	_, _ = find(func(pid int, st stat) (bool, error) {
		s[pid] = st
		return false, nil
	})
	return s
}

// SnapOf reads the state of some processes.
func SnapOf(pids []int) Snapshot {
	s := Snapshot{}
	for _, pid := range pids {
		if st, err := readStat(pid); err == nil {
			s[pid] = st
		}
	}
	return s
}

// Find returns a living process.
func Find(pid int) (p Process, ok bool) {
	st, err := readStat(pid)
	return Process{PID: pid, Start: st.start}, err == nil && !st.dead()
}

// Has reports whether a process lives.
func (s Snapshot) Has(p Process) bool {
	st, ok := s[p.PID]
	return ok && st.start == p.Start
}

// Family returns, for each of some processes, its descendants and the processes of its session, itself included; none if it does not live.
func (s Snapshot) Family(of []Process) [][]int {
	children, sessions := map[int][]int{}, map[int][]int{}
	for pid, st := range s {
		children[st.parent] = append(children[st.parent], pid)
		sessions[st.session] = append(sessions[st.session], pid)
	}
	families := make([][]int, len(of))
	for i, p := range of {
		if !s.Has(p) {
			continue
		}
		seen, pending := map[int]bool{p.PID: true}, append([]int{p.PID}, sessions[p.PID]...)
		for len(pending) > 0 {
			pid := pending[0]
			pending = pending[1:]
			seen[pid] = true
			for _, child := range children[pid] {
				if !seen[child] {
					pending = append(pending, child)
				}
			}
		}
		for pid := range seen {
			families[i] = append(families[i], pid)
		}
	}
	return families
}

// State returns the letter of a process's first thread in /proc; 0: unknown.
func (s Snapshot) State(pid int) byte { return s[pid].state }

// Used returns the processor time of processes and of their descendants that have ended, and the bytes that these have read and written.
func (s Snapshot) Used(pids []int) (cpu time.Duration, bytes uint64) {
	for _, pid := range pids {
		own, _ := cpuTime(pid)
		cpu += own + time.Duration(s[pid].reaped)*tick
		bytes += transferred(pid)
	}
	return cpu, bytes
}

// transferred returns how many bytes a process and its descendants that have ended have read and written.
func transferred(pid int) (n uint64) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(raw) {
		name, value, _ := strings.Cut(string(line), ": ")
		if name == "rchar" || name == "wchar" {
			v, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			n += v
		}
	}
	return n
}

// MainThreadTime returns the processor time of a process's first thread.
func MainThreadTime(pid int) time.Duration {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/schedstat")
	f := strings.Fields(string(raw))
	if err != nil || len(f) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return time.Duration(n)
}

// calls names the system calls in which threads wait.
var calls = map[int]string{
	unix.SYS_READ:            "read",
	unix.SYS_WRITE:           "write",
	unix.SYS_PREAD64:         "pread64",
	unix.SYS_FUTEX:           "futex",
	unix.SYS_CLOCK_NANOSLEEP: "clock_nanosleep",
	unix.SYS_NANOSLEEP:       "nanosleep",
	unix.SYS_PPOLL:           "ppoll",
	unix.SYS_PSELECT6:        "pselect6",
	unix.SYS_EPOLL_PWAIT:     "epoll_pwait",
	unix.SYS_RECVFROM:        "recvfrom",
	unix.SYS_RECVMSG:         "recvmsg",
	unix.SYS_SENDTO:          "sendto",
	unix.SYS_SENDMSG:         "sendmsg",
	unix.SYS_CONNECT:         "connect",
	unix.SYS_ACCEPT4:         "accept4",
	unix.SYS_WAIT4:           "wait4",
	unix.SYS_WAITID:          "waitid",
	unix.SYS_OPENAT:          "openat",
	unix.SYS_FSYNC:           "fsync",
	unix.SYS_IOCTL:           "ioctl",
}

// WaitsIn returns the kernel function, or the system call, in which the first thread of a process waits; "": it runs, or that is unknown.
func WaitsIn(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	if raw, err := os.ReadFile(dir + "/wchan"); err == nil && len(raw) > 1 { // 0 where the kernel does not show it
		return string(raw)
	}
	raw, err := os.ReadFile(dir + "/syscall")
	number, _, _ := strings.Cut(string(raw), " ")
	if n, bad := strconv.Atoi(number); err == nil && bad == nil {
		return calls[n]
	}
	return ""
}

// Takes reports whether a process handles a signal, and whether its first thread has not taken one yet that was sent to it.
func Takes(pid int, signal syscall.Signal) (handles, pending bool) {
	bit := uint64(1) << (uint(signal) - 1)
	who := strconv.Itoa(pid)
	return statusMask(who, "SigCgt")&bit != 0, (statusMask(who, "SigPnd")|statusMask(who, "ShdPnd"))&bit != 0
}
