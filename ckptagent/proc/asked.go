//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
)

// asked returns which processes, of a first one and its descendants, get SIGTERM before all are killed. It is the first one if that handles
// the signal. If it is a shell or has ended, it is those below it that handle it. Otherwise it is none, because SIGTERM would end the
// process at once. A process that runs the program of an asked process above it is a worker, such as a data loader's; its parent ends it.
func asked(first int, living map[int]stat) []int {
	_, there := living[first]
	if there && !handlesTERM(first) && !isShellProcess(first) {
		return nil
	}
	handlers, shell := map[int]string{}, there && isShellProcess(first) // with their programs
	for pid := range living {
		if handlesTERM(pid) {
			handlers[pid] = program(pid)
		}
	}
	var out []int
	for pid, file := range handlers {
		worker := false
		for above, hops := living[pid].parent, 0; above != 0 && hops <= len(living) && !worker; hops++ {
			of, handles := handlers[above]
			worker = handles && (file == of || above == first && !shell)
			above = living[above].parent
		}
		if !worker {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// handlesTERM reports whether a process has a handler for SIGTERM.
func handlesTERM(pid int) bool {
	return statusMask(strconv.Itoa(pid), "SigCgt")&(1<<(uint(syscall.SIGTERM)-1)) != 0
}

// statusMask returns a bit set in /proc/WHO/status, of signals or capabilities; empty if it cannot be read.
func statusMask(who, name string) uint64 {
	mask, _ := strconv.ParseUint(statusField(who, name), 16, 64)
	return mask
}

// statusField returns one line of /proc/WHO/status; "" if it cannot be read.
func statusField(who, name string) string {
	raw, err := os.ReadFile("/proc/" + who + "/status")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut("\n"+string(raw), "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// program returns the file that a process runs; "": unknown.
func program(pid int) string {
	file, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return ""
	}
	return file
}

// isShellProcess reports whether a process runs a shell; busybox counts if it was started as one.
func isShellProcess(pid int) bool {
	argv := commandLine(pid)
	return launch.IsShell(filepath.Base(program(pid))) || len(argv) > 0 && launch.IsShell(strings.TrimPrefix(argv[0], "-"))
}

// ask sends SIGTERM to processes and waits until they have ended, at most for grace.
func ask(pids []int, grace time.Duration) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGTERM)
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	awaitAll(pids, grace)
}

// keeperTimeout is how long a process that removes what others have left may run after these are gone.
const keeperTimeout = time.Second

// keeps reports whether a process removes shared memory and semaphores of others after their end: Python's resource tracker, PyTorch's
// shared memory manager. It ends when no process holds its pipe or socket any more.
func keeps(pid int) bool {
	argv := commandLine(pid)
	return len(argv) > 0 && (filepath.Base(argv[0]) == "torch_shm_manager" || slices.ContainsFunc(argv[1:], func(a string) bool {
		return strings.HasPrefix(a, "from multiprocessing.resource_tracker import main;")
	}))
}
