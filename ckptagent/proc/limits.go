//go:build linux

package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/protocol"
)

// Limits are what a process inherits besides its environment and a shell can change. The agent applies them to the ranks, which are not the
// launcher's children.
type Limits struct {
	Umask int `json:"umask"`
	// Resource limits by number, soft and hard.
	Resource map[int][2]uint64 `json:"resource"`
	// Files is the soft limit of open files; 0: unknown.
	Files uint64 `json:"files,omitempty"`
	// CPUs are the processors that the process may use.
	CPUs []int `json:"cpus"`
	Nice int   `json:"nice,omitempty"`
	// Blocked is the set of blocked signals, one bit each.
	Blocked uint64 `json:"blocked,omitempty"`
	// Identity comes from the kernel, never from the launcher.
	Identity Identity     `json:"identity"`
	Memory   MemoryPolicy `json:"memory"`
}

// resources are the limits that pods change; RLIMIT_NOFILE is handled separately.
var resources = []int{unix.RLIMIT_AS, unix.RLIMIT_CORE, unix.RLIMIT_CPU, unix.RLIMIT_DATA, unix.RLIMIT_FSIZE, unix.RLIMIT_MEMLOCK,
	unix.RLIMIT_MSGQUEUE, unix.RLIMIT_NPROC, unix.RLIMIT_SIGPENDING, unix.RLIMIT_STACK, unix.RLIMIT_NOFILE}

func readLimits() Limits {
	l := Limits{Resource: map[int][2]uint64{}, Umask: syscall.Umask(0o077)}
	syscall.Umask(l.Umask)
	for _, r := range resources {
		var lim unix.Rlimit
		if unix.Prlimit(0, r, nil, &lim) == nil {
			l.Resource[r] = [2]uint64{lim.Cur, lim.Max}
		}
	}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		for i := range 1024 {
			if set.IsSet(i) {
				l.CPUs = append(l.CPUs, i)
			}
		}
	}
	return l
}

// inherited returns the limits that this process was started with.
func inherited() Limits {
	l := readLimits()
	l.Files, l.Memory = softFiles(), readMemoryPolicy()
	l.Identity, _ = identityOf(os.Getpid())
	if raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		l.Nice = 20 - raw // the system call returns it so
	}
	l.Blocked = statusMask("thread-self", "SigBlk")
	return l
}

// softFiles returns the soft limit of open files that this process was started with, 0: unknown. A shell reads it: the Go runtime has
// raised its own to the hard limit, and lowers it again in child processes.
func softFiles() uint64 {
	said, err := exec.Command("/bin/sh", "-c", "ulimit -S -n").Output()
	if err != nil {
		return 0
	}
	if n, err := strconv.ParseUint(strings.TrimSpace(string(said)), 10, 64); err == nil {
		return n
	}
	return unix.RLIM_INFINITY
}

func (l Limits) equal(o Limits) bool {
	return l.Umask == o.Umask && maps.Equal(l.Resource, o.Resource) && l.Files == o.Files && slices.Equal(l.CPUs, o.CPUs) &&
		l.Nice == o.Nice &&
		l.Blocked == o.Blocked &&
		l.Memory == o.Memory && l.Identity.equal(o.Identity)
}

// DropDescriptors marks all descriptors but the standard streams close-on-exec: ranks get only those of their launcher, as under torchrun.
func DropDescriptors() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

// Exec applies limits and execs a command: exec LIMITS DIR -- ARGV…. Ranks are started through it, so that they have the launcher's limits.
func Exec(args []string) int {
	if len(args) < 3 || args[1] != "--" {
		fmt.Fprintln(os.Stderr, "holdfast: exec: called by hand; it is for the agent only")
		return protocol.ExitRefused
	}
	var l Limits
	if err := json.Unmarshal([]byte(args[0]), &l); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: exec:", err)
		return exitNotExecutable
	}
	runtime.LockOSThread()
	argv := args[2:]
	file := ""
	err := l.apply()
	if err == nil {
		file, err = exec.LookPath(argv[0])
	}
	if err == nil {
		err = syscall.Exec(file, argv, os.Environ())
	}
	fmt.Fprintf(os.Stderr, "holdfast: starting %s: %v\n", argv[0], err)
	if errors.Is(err, exec.ErrNotFound) {
		return exitNotFound
	}
	return exitNotExecutable
}

// apply applies the limits, each as far as possible. The launcher's identity is required.
func (l Limits) apply() error {
	syscall.Umask(l.Umask)
	now := readLimits()
	for r, want := range l.Resource {
		have := now.Resource[r]
		if r == unix.RLIMIT_NOFILE {
			switch {
			case l.Files != 0:
				want[0] = l.Files
			case want[1] == have[1]:
				continue // lowered again to what this process was started with
			default: // a process that changes the hard limit sets both
				want[0] = want[1]
			}
			_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: want[0], Max: want[1]})
			continue
		}
		if want != have {
			_ = unix.Prlimit(0, r, &unix.Rlimit{Cur: want[0], Max: want[1]}, nil)
		}
	}
	if len(l.CPUs) > 0 && !slices.Equal(l.CPUs, now.CPUs) {
		var set unix.CPUSet
		for _, c := range l.CPUs {
			set.Set(c)
		}
		_ = unix.SchedSetaffinity(0, &set)
	}
	if own := readMemoryPolicy(); own != l.Memory {
		if err := l.Memory.set(); err != nil {
			return err
		}
	}
	own, err := identityOf(os.Getpid())
	if err == nil {
		err = l.Identity.become(own)
	}
	if err == nil {
		err = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{Val: [16]uint64{l.Blocked}}, nil)
	}
	return err
}
