//go:build linux

package proc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/protocol"
)

// tick is the unit of times in /proc/<pid>/stat; it is 100 per second on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// stat is the part of /proc/<pid>/stat that this package uses.
type stat struct {
	state   byte
	parent  int
	session int
	threads int
	start   uint64 // ticks after boot; with the pid it identifies a process
	kernel  bool   // a kernel thread
	environ int    // size of its environment in bytes; -1: unknown, as during execve
	reaped  uint64 // processor time of its descendants that have ended, in ticks
}

// ofKernel is the kernel's PF_KTHREAD, among the flags in /proc/<pid>/stat.
const ofKernel = 0x00200000

// dead reports whether a process has ended: a zombie whose other threads are gone.
func (s stat) dead() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	end := bytes.LastIndexByte(raw, ')') // the name before it may contain any character
	f := strings.Fields(string(raw[end+1:]))
	if end < 0 || len(f) < 20 {
		return stat{}, fmt.Errorf("reading the state of process %d: %q is too short", pid, raw)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	environ := -1
	if len(f) > 48 && f[23] != "0" && f[23] != "1" { // code address, which the kernel sets last; 1 without permission
		environ = atoi(f[48]) - atoi(f[47])
	}
	return stat{
		state:   f[0][0],
		parent:  atoi(f[1]),
		session: atoi(f[3]),
		threads: atoi(f[17]),
		start:   start,
		kernel:  atoi(f[6])&ofKernel != 0,
		environ: environ,
		reaped:  uint64(max(atoi(f[13]), 0) + max(atoi(f[14]), 0)),
	}, err
}

// Process is a process that this or an earlier incarnation of the agent started.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // stat.start
	own   *os.Process
}

// command is the input of start.
type command struct {
	file  string // empty: argv[0]
	argv  []string
	env   []string
	dir   string
	files [3]*os.File
	extra []*os.File // from descriptor 3 on
}

// start starts a process in its own session, so that all its descendants can be found.
func start(c command) (Process, error) {
	files := append([]*os.File{c.files[0], c.files[1], c.files[2]}, c.extra...)
	if c.file == "" {
		c.file = c.argv[0]
	}
	p, err := os.StartProcess(c.file, c.argv, &os.ProcAttr{
		Dir: c.dir, Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return Process{}, fmt.Errorf("starting %s: %w", c.file, err)
	}
	st, err := readStat(p.Pid)
	if err != nil { // impossible: our child, not yet reaped
		return Process{}, err
	}
	return Process{PID: p.Pid, Start: st.start, own: p}, nil
}

// sooner is added to the OOM score of ranks, in thousandths of the container's memory limit, so that they are killed before agent and init.
// It is small, because the agent needs only a few MiB and the pod's score among others on the node should not change much.
const sooner = 100

// startRank starts a rank or a standby. When the kernel kills single processes for memory, it kills a rank before the agent, which can
// report the rank's end. When it kills the whole container this has no effect.
func startRank(c command) (Process, error) {
	p, err := start(c)
	if err == nil {
		raiseOOMScore(p.PID)
	}
	return p, err
}

// raiseOOMScore is best effort: a process that may not be changed keeps the agent's score.
func raiseOOMScore(pid int) {
	const highest = 1000
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return
	}
	score := min(atoi(strings.TrimSpace(string(own)))+sooner, highest)
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
}

// Alive reports whether the process has not ended; another process with its pid does not count.
func (p Process) Alive() bool {
	st, err := readStat(p.PID)
	return err == nil && st.start == p.Start && !st.dead()
}

// Hold makes init treat this process as the command and not end the container with it.
func (p Process) Hold(root Root) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return Replace(root.HeldFile(), raw)
}

// lost returns the exit of a process whose exit status is unknown.
func lost() protocol.Exit {
	return protocol.Exit{Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), At: time.Now()}
}

// Wait waits until the process has ended and returns its exit.
func (p Process) Wait(exits *Exits) protocol.Exit {
	if p.own != nil {
		// An agent that is killed while it blocks in wait(2) may still consume the status, and init would never see it. So this waits
		// without reaping and leaves the status to init.
		waitGone(p)
		ps, err := p.own.Wait()
		if err != nil {
			return lost()
		}
		code, sig := exitCode(ps.Sys().(syscall.WaitStatus))
		return protocol.Exit{Code: code, Signal: sig, At: time.Now()}
	}
	born := startTime(p.Start)
	waitGone(p)
	ws, at, ok := exits.Wait(p.PID, born, 2*time.Second)
	if !ok {
		return lost()
	}
	code, sig := exitCode(ws)
	return protocol.Exit{Code: code, Signal: sig, At: at}
}

// Kill ends the process and its session, if it still runs.
func (p Process) Kill() {
	if p.PID > 1 && p.Alive() {
		_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	}
}

// waitGone blocks until a process that is not our child has ended.
func waitGone(p Process) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == unix.ENOSYS || err == unix.EPERM {
		if p.Alive() {
			awaitByLooks(p.PID, time.Time{})
		}
		return
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !p.Alive() { // the pid was reused
		return
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return
		}
	}
}

// startTime returns when a process started, rounded down.
func startTime(ticks uint64) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}
	}
	age := time.Duration(ts.Nano()) - time.Duration(ticks)*tick
	return time.Now().Add(-age - tick)
}

// cpuTime returns the CPU time of all threads of a process.
func cpuTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^pid)<<3 | 2 // the clock ID of clock_getcpuclockid(3)
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("reading the processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// OwnMemory returns a process's private memory in bytes, without files that it shares; 0 if it cannot be read.
func OwnMemory(pid int) uint64 {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	f := strings.Fields(string(raw))
	if err != nil || len(f) < 3 {
		return 0
	}
	return uint64(max(0, atoi(f[1])-atoi(f[2]))) * uint64(os.Getpagesize())
}
