//go:build linux

package proc

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Exit codes of a command that could not be started, as shells have them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// finishWait is how long init lets the agent end what it runs, and say why it refused to run it, once the user's command has
// ended by itself.
const finishWait = 25 * time.Second

// Init runs the user's command as the first process of a container, beside an agent that it starts again
// whenever that dies, and returns the command's exit code. Without a coordinator it becomes the command.
func Init(root Root, command []string) int {
	if len(command) == 0 {
		fmt.Fprintln(os.Stderr, "holdfast: init: no command given; write init -- COMMAND")
		return 2
	}
	path := os.Getenv("PATH")
	if path == "" {
		path = defaultPath
		os.Setenv("PATH", path)
	}
	if os.Getenv(EnvCoordinator) == "" {
		return become(command)
	}
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(20)
	i := &initProcess{root: root, signals: make(chan os.Signal, 64), restart: time.NewTimer(time.Hour)}
	if err := i.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: init:", err)
		return exitNotExecutable
	}
	i.startAgent()
	env := i.env(path)
	os.Setenv("PATH", i.root.Shims()+":"+path) // a command that is a launcher itself is our shim
	file, code := lookUp(command[0])
	if code != 0 {
		i.signal(i.agent, syscall.SIGKILL)
		return code
	}
	pid, err := syscall.ForkExec(file, command, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintf(os.Stderr, "holdfast: init: starting %s: %v\n", file, err)
		return exitNotExecutable
	}
	i.user = pid
	return i.loop()
}

// become replaces this process by the command.
func become(command []string) int {
	file, code := lookUp(command[0])
	if code != 0 {
		return code
	}
	err := syscall.Exec(file, command, os.Environ())
	fmt.Fprintf(os.Stderr, "holdfast: init: starting %s: %v\n", file, err)
	return exitNotExecutable
}

func lookUp(name string) (string, int) {
	file, err := exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return file, 0
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintf(os.Stderr, "holdfast: init: %s: not executable\n", name)
		return "", exitNotExecutable
	default:
		fmt.Fprintf(os.Stderr, "holdfast: init: %s: not found\n", name)
		return "", exitNotFound
	}
}

// initProcess is the state of init.
//
// Invariants: every pid that is neither user nor agent and is reaped here was an orphan; its record is in
// the exits file before the agent is poked.
type initProcess struct {
	root      Root
	container string
	signals   chan os.Signal

	user, agent  int
	agentStarted time.Time
	quick        int // deaths of the agent in a row that came within a second of its start
	restart      *time.Timer

	exits *os.File
	poke  [2]int // pipe; the agent holds the read end

	leaving  bool
	userCode int
	userDone bool
}

func (i *initProcess) prepare() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the reaper of orphans: %w", err)
	}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	i.container = hex.EncodeToString(nonce[:])
	if err := os.MkdirAll(i.root.Run(), 0o777); err != nil {
		return fmt.Errorf("making the folder for sockets: %w", err)
	}
	_ = os.Remove(i.root.ExitsFile())
	f, err := os.OpenFile(i.root.ExitsFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("making the file for exits: %w", err)
	}
	i.exits = f
	if err := unix.Pipe2(i.poke[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("making the pipe to the agent: %w", err)
	}
	signal.Notify(i.signals)
	return nil
}

// env is the environment of everything below init.
func (i *initProcess) env(path string) []string {
	python := i.root.Python()
	if old := os.Getenv("PYTHONPATH"); old != "" {
		python += ":" + old
	}
	return setEnv(os.Environ(), map[string]string{
		EnvRoot: string(i.root), EnvContainer: i.container, "PATH": i.root.Shims() + ":" + path, "PYTHONPATH": python,
	})
}

func (i *initProcess) startAgent() {
	i.agentStarted = time.Now()
	env := setEnv(os.Environ(), map[string]string{EnvRoot: string(i.root), EnvContainer: i.container})
	pid, err := syscall.ForkExec(i.root.Binary(), []string{"holdfast-agent", "run"},
		&syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2, uintptr(i.poke[0])}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		fmt.Fprintf(os.Stderr, "holdfast: init: starting the agent: %v\n", err)
		i.agent = 0
		i.restart.Reset(time.Second)
		return
	}
	i.agent = pid
}

func (i *initProcess) loop() int {
	for {
		select {
		case sig := <-i.signals:
			i.onSignal(sig.(syscall.Signal))
		case <-i.restart.C:
			switch {
			case i.userDone: // the agent had its time
				return i.userCode
			case i.agent == 0:
				i.startAgent()
			}
		}
		if i.userDone && i.agent == 0 {
			return i.userCode
		}
	}
}

func (i *initProcess) onSignal(sig syscall.Signal) {
	switch sig {
	case syscall.SIGCHLD:
		i.reap()
	case syscall.SIGURG, syscall.SIGPIPE, syscall.SIGPROF, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		// The Go runtime's own, or about a terminal.
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP:
		i.leaving = true
		i.signal(i.agent, sig)
		i.signal(i.user, sig)
	default:
		i.signal(i.user, sig)
	}
}

func (i *initProcess) signal(pid int, sig syscall.Signal) {
	if pid > 0 {
		_ = syscall.Kill(pid, sig)
	}
}

func (i *initProcess) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		switch pid {
		case i.agent:
			i.agentEnded()
		case i.user:
			i.user, i.userDone = 0, true
			i.userCode, _ = exitCode(ws)
			i.finish()
		default:
			i.record(pid, ws)
			_, _ = unix.Write(i.poke[1], []byte{1}) // full is fine: the agent looks at the file
		}
	}
}

// maxExits is how large the exits file gets, keptExits how much of its end is kept then. An agent asks for the
// end of a process it knew within seconds.
const (
	maxExits  = 256 << 10
	keptExits = 64 << 10
)

// record notes the end of an orphan.
func (i *initProcess) record(pid int, ws syscall.WaitStatus) {
	if st, err := i.exits.Stat(); err == nil && st.Size() >= maxExits {
		i.shortenExits()
	}
	fmt.Fprintf(i.exits, "%d %d %d\n", pid, uint32(ws), time.Now().UnixNano())
}

// shortenExits puts a file with the newest records in the place of the exits file; where it cannot, that stays.
func (i *initProcess) shortenExits() {
	raw, err := os.ReadFile(i.root.ExitsFile())
	if err != nil {
		return
	}
	_, kept, _ := bytes.Cut(raw[max(0, len(raw)-keptExits):], []byte("\n")) // the first one is cut
	part := i.root.ExitsFile() + ".new"
	if os.WriteFile(part, kept, 0o666) != nil || os.Rename(part, i.root.ExitsFile()) != nil {
		return
	}
	if f, err := os.OpenFile(i.root.ExitsFile(), os.O_APPEND|os.O_WRONLY, 0); err == nil {
		i.exits.Close()
		i.exits = f
	}
}

func (i *initProcess) agentEnded() {
	i.agent = 0
	if i.userDone {
		return
	}
	if time.Since(i.agentStarted) > time.Second {
		i.quick = 0
	} else {
		i.quick = min(i.quick+1, 7)
	}
	if i.quick <= 1 {
		i.startAgent()
		return
	}
	i.restart.Reset(10 * time.Millisecond << (i.quick - 1))
}

// finish lets the agent end what still runs: as long as that takes where the pod is being shut down (the
// kubelet bounds it), else briefly, for then nothing should be left.
func (i *initProcess) finish() {
	if i.agent == 0 {
		return
	}
	i.signal(i.agent, syscall.SIGTERM) // again, for it may be younger than the one that init was sent
	if i.leaving {
		i.restart.Stop()
		return
	}
	i.restart.Reset(finishWait)
}

// exitCode is the code that a shell shows for a wait status, and the signal if one ended the process.
func exitCode(ws syscall.WaitStatus) (code, sig int) {
	if ws.Signaled() {
		return 128 + int(ws.Signal()), int(ws.Signal())
	}
	return ws.ExitStatus(), 0
}

// setEnv returns env with the given variables set, each once.
func setEnv(env []string, set map[string]string) []string {
	out := make([]string, 0, len(env)+len(set))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if _, ok := set[name]; !ok {
			out = append(out, kv)
		}
	}
	return append(out, sortedEnv(set)...)
}

func atoi(s string) int { n, _ := strconv.Atoi(s); return n }
