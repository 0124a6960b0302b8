//go:build linux

package proc

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/protocol"
)

// hello is a shim's request to the agent, sent with its three standard descriptors.
type hello struct {
	ID   string   `json:"id"`
	Argv []string `json:"argv"`
	Dir  string   `json:"dir"`
	Env  []string `json:"env"`
	// Limits are the resource limits and the umask that a shell may have set before it ran the launcher.
	Limits Limits `json:"limits"`
}

// answer is the agent's result for a shim.
type answer struct {
	Refused string `json:"refused,omitempty"`
	*Outcome
}

// Outcome is how a launcher's ranks ended, as far as this pod knows.
type Outcome struct {
	Exit    int    `json:"exit"`
	Message string `json:"message,omitempty"`
	// BaseRank is the first of the Ranks of this pod.
	BaseRank int `json:"baseRank"`
	Ranks    int `json:"ranks"`
	// Failures are the ranks of this pod that failed before the agent ended them.
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is one failed rank.
type Failure struct {
	Local  int   `json:"local"`
	PID    int   `json:"pid"`
	Code   int   `json:"code"`
	Signal int   `json:"signal,omitempty"`
	At     int64 `json:"at"`
	// ErrorFile is where torch's error handler would have written.
	ErrorFile string `json:"errorFile,omitempty"`
}

// word is a later message of a shim to the agent.
type word struct {
	Signal int `json:"signal"`
}

// shimRetry is the pause between a shim's attempts to reach the agent; shimTimeout is after how long it logs that.
const (
	shimRetry   = 20 * time.Millisecond
	shimTimeout = 10 * time.Second
)

// Shim replaces the launcher that argv names: it sends the request to the agent and returns the agent's exit code. If the agent restarts
// meanwhile, the shim sends the request again.
func Shim(root Root, argv []string) int {
	if python := os.Getenv(EnvRunnerPython); python != "" {
		os.Unsetenv(EnvRunnerPython)
		if code, ended := deepSpeedRunner(python, argv); ended {
			return code
		}
	}
	s := shim{root: root, signals: make(chan os.Signal, 8), result: takeResult()}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: reading the working directory:", err)
		return 1
	}
	s.hello = hello{ID: hex.EncodeToString(nonce[:]), Argv: argv, Dir: dir, Env: os.Environ(), Limits: inherited()}
	signal.Notify(s.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	for {
		conn := s.dial()
		if a, ok := s.talk(conn); ok {
			return s.end(a)
		}
	}
}

// hostfile is where deepspeed's runner looks for hosts by default.
const hostfile = "/job/hostfile"

// deepSpeedRunner runs deepspeed's runner, if it is supported. The runner knows the devices of this machine and calls another shim where it
// would start the ranks. ended is false if the agent must refuse it.
func deepSpeedRunner(python string, argv []string) (code int, ended bool) {
	_, err := os.Stat(hostfile)
	if launch.CheckDeepSpeed(argv, 0, err == nil) != nil {
		return 0, false
	}
	argv = launch.DeepSpeedHere(argv, err == nil)
	if filepath.Base(argv[0]) == "deepspeed" {
		argv = append([]string{python}, argv...)
	}
	err = syscall.Exec(python, argv, append(os.Environ(), EnvRunnerRead+"=1"))
	fmt.Fprintf(os.Stderr, "holdfast: starting %s: %v\n", python, err)
	return exitNotExecutable, true
}

type shim struct {
	root    Root
	hello   hello
	signals chan os.Signal
	result  *os.File       // nil: no process reads it
	last    syscall.Signal // the newest signal, repeated to each agent
}

func (s *shim) dial() *net.UnixConn {
	began, said := time.Now(), false
	for {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.root.LaunchSocket(), Net: "unix"})
		if err == nil {
			if err = s.send(conn); err == nil {
				return conn
			}
			conn.Close()
		}
		if !said && time.Since(began) > shimTimeout {
			said = true
			fmt.Fprintf(os.Stderr, "holdfast: still waiting for the agent of this pod: %v\n", err)
		}
		select {
		case sig := <-s.signals:
			s.last = sig.(syscall.Signal)
		case <-time.After(shimRetry):
		}
	}
}

func (s *shim) send(conn *net.UnixConn) error {
	body, err := json.Marshal(s.hello)
	if err != nil {
		return err
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := conn.WriteMsgUnix(size, syscall.UnixRights(0, 1, 2), nil); err != nil {
		return err
	}
	_, err = conn.Write(body)
	return err
}

// talk waits for the agent's result; ok is false if the agent ended without one.
func (s *shim) talk(conn *net.UnixConn) (a answer, ok bool) {
	defer conn.Close()
	answers := make(chan answer, 1)
	go func() {
		defer close(answers)
		line, err := bufio.NewReader(conn).ReadBytes('\n')
		var a answer
		if err == nil && json.Unmarshal(line, &a) == nil {
			answers <- a
		}
	}()
	s.forward(conn)
	for {
		select {
		case a, ok = <-answers:
			return a, ok
		case sig := <-s.signals:
			s.last = sig.(syscall.Signal)
			s.forward(conn)
		}
	}
}

func (s *shim) forward(conn *net.UnixConn) {
	if s.last == 0 {
		return
	}
	line, _ := json.Marshal(word{Signal: int(s.last)})
	_, _ = conn.Write(append(line, '\n'))
}

func (s *shim) end(a answer) int {
	if s.result != nil {
		_ = json.NewEncoder(s.result).Encode(a)
	}
	if a.Outcome == nil && a.Refused == "" {
		return 1
	}
	if a.Refused != "" {
		fmt.Fprintf(os.Stderr, "holdfast: %s\n", a.Refused)
		return protocol.ExitRefused
	}
	if a.Message != "" {
		fmt.Fprintf(os.Stderr, "holdfast: %s\n", a.Message)
	}
	return a.Exit
}

// takeResult returns the pipe on which a Python process waits for the result, in JSON; nil: none waits. If that process ends, so do the
// ranks.
func takeResult() *os.File {
	fd, err := strconv.Atoi(os.Getenv(EnvLaunchResult))
	if err != nil {
		return nil
	}
	os.Unsetenv(EnvLaunchResult)
	syscall.CloseOnExec(fd)
	runtime.LockOSThread() // the setting belongs to the thread
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0)
	return os.NewFile(uintptr(fd), "result")
}
