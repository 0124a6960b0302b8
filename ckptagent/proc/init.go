//go:build linux

package proc

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
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

// Exit codes of a shell for a command that could not be started.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// finishWait is how long init waits for the agent to end its processes and send its last report once the user's command has ended and the
// agent has not taken it over.
const finishWait = 25 * time.Second

// An agent that lived for steady counts as able to run; agentlessWait is how long a command that an agent has taken over waits for one.
const (
	steady        = 10 * time.Second
	agentlessWait = 10 * time.Minute
)

// Init runs the user's command as the first process of a container, beside an agent that it restarts whenever the agent dies. Init returns
// the command's exit code, 1 for 137. Without a coordinator or a gang it execs the command.
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
	gang, said := os.LookupEnv(EnvGang)
	if os.Getenv(EnvCoordinator) == "" || said && gang == "" { // a copied pod lacks the label that names its gang
		return become(command)
	}
	runtime.GOMAXPROCS(1)
	runtime.LockOSThread() // the agent gets SIGKILL when the thread that started it ends
	debug.SetGCPercent(20)
	i := &initProcess{root: root, signals: make(chan os.Signal, 64), restart: time.NewTimer(time.Hour), deadline: time.NewTimer(time.Hour)}
	i.deadline.Stop()
	if err := i.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: init:", err)
		return exitNotExecutable
	}
	env := commandEnv(root, os.Environ(), i.container, path)
	agentPath := os.Getenv("PATH")
	os.Setenv("PATH", i.root.Shims()+":"+path) // a command that is a launcher starts the shim
	file, code := lookUp(command[0])
	os.Setenv("PATH", agentPath)
	if code != 0 {
		return code
	}
	pid, err := syscall.ForkExec(file, command, &syscall.ProcAttr{Env: withErrorFile(env, command, root, 0), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintf(os.Stderr, "holdfast: init: starting %s: %v\n", file, err)
		return exitNotExecutable
	}
	i.user = pid
	if err := i.keepCommand(command, file); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: init:", err)
		i.signal(pid, syscall.SIGKILL)
		return exitNotExecutable
	}
	i.lived = time.Now()
	i.startAgent()
	return containerCode(i.loop())
}

// exitKilled is the exit code of a container whose processes were all killed. The webhook lets Kubernetes restart such a container or not
// count it as failed; that must not happen to a command that ended and is given up.
const exitKilled = 137

// containerCode is the exit code of the container whose command ended with code.
func containerCode(code int) int {
	if code != exitKilled {
		return code
	}
	fmt.Fprintln(os.Stderr, "holdfast: init: the command ended with 137 (SIGKILL); the container ends with 1, because 137 means that a whole container was killed")
	return 1
}

// become execs the command in this process.
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
// Invariants: each process that is reaped here, except the agent, is recorded in the exits file before the agent is poked. A signal that
// ends the pod is recorded before it is forwarded.
//
// When the command has ended, its code is the container's once the agent has ended without error. An agent that has taken the command over
// (Root.HeldFile) runs it again as often as needed, and writes the code to Root.CodeFile.
type initProcess struct {
	root      Root
	container string
	signals   chan os.Signal

	user, agent  int
	agentStarted time.Time
	lived        time.Time // when the newest steady agent ended; at first when the first agent started
	quick        int       // deaths of the agent in a row within a second of its start
	restart      *time.Timer

	exits *os.File
	poke  [2]int // pipe; the agent holds the read end

	leaving   bool
	userCode  int
	userDone  bool
	agentDone bool        // it has ended without error and has nothing left to do
	deadline  *time.Timer // for an agent that does not end
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
	for _, file := range []string{i.root.ExitsFile(), i.root.HeldFile(), i.root.CodeFile(), i.root.ErrorFile(0, 0)} {
		_ = os.Remove(file) // of an earlier start of the container
	}
	if err := os.MkdirAll(i.root.Ranks(), 0o777); err != nil {
		return fmt.Errorf("making the folder for files of ranks: %w", err)
	}
	if err := i.root.protect(); err != nil && effective()&(1<<capSetUID) != 0 {
		fmt.Fprintln(os.Stderr, "holdfast: init: other users of this container can replace files of Holdfast:", err)
	}
	ClearShared(i.root, SharedUse{Names: LookShared().Names}) // left by an earlier start of the container, whose processes are gone
	if err := NoteShared(i.root); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: init:", err)
	}
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

func (i *initProcess) startAgent() {
	i.agentStarted = time.Now()
	env := setEnv(os.Environ(), map[string]string{EnvRoot: string(i.root), EnvContainer: i.container, EnvInit: strconv.Itoa(os.Getpid())})
	// Without init no process reaps for the agent or ends the container, and the next container has its own agent.
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	pid, err := syscall.ForkExec(i.root.Binary(), []string{"holdfast-agent", "run"},
		&syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2, uintptr(i.poke[0])}, Sys: attr})
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
			if i.agent == 0 && !i.agentDone {
				i.startAgent()
			}
		case <-i.deadline.C:
			switch {
			case !exists(i.root.HeldFile()):
				return i.userCode // the agent's time is over
			case i.agentless(time.Now()):
				fmt.Fprintf(os.Stderr, "holdfast: init: no agent has lived for %s in the last %s, and the command is an agent's to restart; the container ends\n", steady, agentlessWait)
				return cmp.Or(i.userCode, 1) // the exit code of its present run is unknown
			}
			i.deadline.Reset(finishWait)
		}
		if i.userDone && i.agentDone {
			return i.code()
		}
	}
}

// agentless reports whether no agent has been steady for agentlessWait, so that none will end the container.
func (i *initProcess) agentless(now time.Time) bool {
	lives := i.agent != 0 && now.Sub(i.agentStarted) >= steady
	return !lives && now.Sub(i.lived) >= agentlessWait
}

// code returns the container's exit code: the agent's, else the command's.
func (i *initProcess) code() int {
	raw, err := os.ReadFile(i.root.CodeFile())
	if code, bad := strconv.Atoi(string(raw)); err == nil && bad == nil {
		return code
	}
	return i.userCode
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (i *initProcess) onSignal(sig syscall.Signal) {
	switch sig {
	case syscall.SIGCHLD:
		i.reap()
	case syscall.SIGURG, syscall.SIGPIPE, syscall.SIGPROF, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		// Signals of the Go runtime or of a terminal.
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP:
		i.leaving = true
		i.line("%d %d %d\n", leavingPID, int(sig), time.Now().UnixNano()) // for an agent that is not started yet
		i.deadline.Stop()
		i.signal(i.agent, sig)
		i.signal(i.user, sig)
	default:
		i.signal(i.present(), sig)
	}
}

// present returns the process that runs the command: init's child, or the agent's; 0: none.
func (i *initProcess) present() int {
	if i.user != 0 {
		return i.user
	}
	var held Process
	raw, err := os.ReadFile(i.root.HeldFile())
	if err != nil || json.Unmarshal(raw, &held) != nil || !held.Alive() { // between two runs its pid may be reused
		return 0
	}
	return held.PID
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
			i.agentEnded(ws)
			continue
		case i.user:
			i.user, i.userDone = 0, true
			i.userCode, _ = exitCode(ws)
			if !i.leaving { // else without a limit: the kubelet sets one
				i.deadline.Reset(finishWait)
			}
		}
		i.record(pid, ws)
		_, _ = unix.Write(i.poke[1], []byte{1}) // a full pipe is enough: the agent then reads the file
	}
}

// maxExits is the size at which the exits file is shortened to the last keptExits bytes. An agent needs a record within seconds.
const (
	maxExits  = 256 << 10
	keptExits = 64 << 10
)

// leavingPID is the pid of a record of the signal that ends the pod.
const leavingPID = 0

// record writes how an orphan, or the command, ended.
func (i *initProcess) record(pid int, ws syscall.WaitStatus) {
	i.line("%d %d %d\n", pid, uint32(ws), time.Now().UnixNano())
}

// line appends a line to the exits file.
func (i *initProcess) line(format string, args ...any) {
	if st, err := i.exits.Stat(); err == nil && st.Size() >= maxExits {
		i.shortenExits()
	}
	fmt.Fprintf(i.exits, format, args...)
}

// shortenExits replaces the exits file by one with its newest records; on failure the old one stays.
func (i *initProcess) shortenExits() {
	raw, err := os.ReadFile(i.root.ExitsFile())
	if err != nil {
		return
	}
	_, kept, _ := bytes.Cut(raw[max(0, len(raw)-keptExits):], []byte("\n")) // drop the first, which is incomplete
	if Replace(i.root.ExitsFile(), kept) != nil {
		return
	}
	if f, err := os.OpenFile(i.root.ExitsFile(), os.O_APPEND|os.O_WRONLY, 0); err == nil {
		i.exits.Close()
		i.exits = f
	}
}

// agentEnded restarts the agent, unless it ended without error and has nothing left to do.
func (i *initProcess) agentEnded(ws syscall.WaitStatus) {
	i.agent = 0
	if ws.Exited() && ws.ExitStatus() == 0 && (exists(i.root.CodeFile()) || i.userDone && !exists(i.root.HeldFile())) {
		i.agentDone = true
		return
	}
	if time.Since(i.agentStarted) >= steady {
		i.lived = time.Now()
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

// exitCode returns a shell's exit code for a wait status, and the signal that ended the process, if any.
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
