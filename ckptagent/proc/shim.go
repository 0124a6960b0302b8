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
	"syscall"
	"time"
)

// hello is what a shim hands to the agent, with its three standard descriptors.
type hello struct {
	ID   string   `json:"id"`
	Argv []string `json:"argv"`
	Dir  string   `json:"dir"`
	Env  []string `json:"env"`
	// Limits are the resource limits and the umask that a shell may have set before it ran the launcher.
	Limits Limits `json:"limits"`
}

// answer is what the agent tells a shim.
type answer struct {
	Refused string `json:"refused,omitempty"`
	Exit    *int   `json:"exit,omitempty"`
	Message string `json:"message,omitempty"`
}

// word is what a shim tells the agent afterwards.
type word struct {
	Signal int `json:"signal"`
}

// exitRefused is the exit code of a launcher that is not honoured.
const exitRefused = 2

// shimRetry is how long a shim waits between attempts to reach the agent; shimPatience after how long it says so.
const (
	shimRetry    = 20 * time.Millisecond
	shimPatience = 10 * time.Second
)

// Shim stands in for the launcher that argv names: it hands everything to the agent and returns the exit
// code that the agent gives. An agent that dies meanwhile is told everything again when it is back.
func Shim(root Root, argv []string) int {
	s := shim{root: root, signals: make(chan os.Signal, 8)}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdfast: reading the working directory:", err)
		return 1
	}
	s.hello = hello{ID: hex.EncodeToString(nonce[:]), Argv: argv, Dir: dir, Env: os.Environ(), Limits: readLimits()}
	signal.Notify(s.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	for {
		conn := s.dial()
		if a, ok := s.talk(conn); ok {
			return s.end(a)
		}
	}
}

type shim struct {
	root    Root
	hello   hello
	signals chan os.Signal
	last    syscall.Signal // the newest signal, told again to each agent
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
		if !said && time.Since(began) > shimPatience {
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

// talk waits for the agent's answer; ok is false where the agent went away without one.
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
	if a.Refused != "" {
		fmt.Fprintf(os.Stderr, "holdfast: %s\n", a.Refused)
		return exitRefused
	}
	if a.Message != "" {
		fmt.Fprintf(os.Stderr, "holdfast: %s\n", a.Message)
	}
	if a.Exit == nil {
		return 1
	}
	return *a.Exit
}
