//go:build linux

package proc

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/protocol"
)

// source is an interpreter that imports and then forks the standbys of some local ranks, one at a time for each.
type source struct {
	process Process
	control *os.File
	state   sourceState
	ration  ration
	// standbys are those of its ranks: all ranks of the pod, or one.
	standbys []*standby
	ended    chan protocol.Exit // closed after its one value
	// modules is what it was sent to import, begun the number of times that it was.
	modules []string
	begun   int
	// generation is the one that it was started in; 0: before the first, so it lacks the variables that name ranks.
	generation int64
}

// standby waits to become one local rank. It is a fork of its source or, if the source serves one rank and cannot be copied, the source.
type standby struct {
	local  int
	source *source
	line   *os.File
	state  standbyState
	// rank is the process that waits, in ready and stale.
	rank Process
	// asked is when its source last received the order to fork one at once.
	asked time.Time
}

// warmLine is a source's message about itself.
type warmLine struct {
	// Half: half of the modules are imported. Warm: all are.
	Half bool `json:"half"`
	Warm bool `json:"warm"`
	// Alone is why it forks no standbys; empty: it does.
	Alone string `json:"alone"`
	// Imported is the number of modules that it could import.
	Imported int  `json:"imported"`
	CUDA     bool `json:"cuda"`
	// Without lists modules that standbys must not have, because of Why: the source stops importing.
	Without []string `json:"without"`
	Why     string   `json:"why"`
	// Memory is the source's private memory in bytes, without files that it shares with ranks.
	Memory uint64 `json:"memory"`
}

// readyLine is a standby's message that it waits to become the rank.
type readyLine struct {
	Ready bool `json:"ready"`
	PID   int  `json:"pid"`
	// Learned counts the import orders that its source received before the fork.
	Learned int `json:"learned"`
}

// newSource starts an interpreter with that command line and those standard files for some local ranks.
func newSource(job *Job, argv []string, files [3]*os.File, run protocol.Run, locals []int) (*source, error) {
	src := &source{ended: make(chan protocol.Exit, 1), generation: run.Number}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	var fds []string
	for i := range len(locals) + 1 {
		our, their, err := socketpair()
		if err != nil {
			src.hangUp()
			return nil, err
		}
		theirs = append(theirs, their)
		if i == 0 {
			src.control = our
			continue
		}
		src.standbys = append(src.standbys, &standby{local: locals[i-1], source: src, line: our})
		fds = append(fds, fmt.Sprint(3+i))
	}
	env := job.sourceEnv(run, locals)
	env[EnvMark], env[EnvStandbyFD], env[EnvStandbyFDs] = job.Mark, "3", strings.Join(fds, ",")
	c, err := job.command(argv, env, theirs...)
	if err == nil {
		c.files = files
		src.process, err = startRank(c)
	}
	if err != nil {
		src.hangUp()
		return nil, err
	}
	src.ration.pid = src.process.PID
	return src, nil
}

// socketpair returns a connection: one end for this process, the other for a child.
func socketpair() (our, their *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[0], true) // so that closing it unblocks its reader
	}
	if err != nil {
		return nil, nil, fmt.Errorf("making the socket to a standby: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "standby"), os.NewFile(uintptr(fds[1]), "standby"), nil
}

// sendLine sends one JSON object, and files with it, to a source or a standby.
func sendLine(to *os.File, message map[string]any, with ...*os.File) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if len(with) > 0 {
		n, err := sendFiles(to, line, with)
		if err != nil {
			return err
		}
		line = line[n:]
	}
	_, err = to.Write(line)
	return err
}

// sendFiles sends files with the first bytes of a line, and returns how many bytes it sent.
func sendFiles(to *os.File, line []byte, files []*os.File) (n int, err error) {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	raw, err := to.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		n, sent = unix.SendmsgN(int(fd), line, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return sent != unix.EAGAIN
	})
	return n, cmp.Or(err, sent)
}

// maxPublished bounds a line from a user's process, in bytes of the agent's memory.
const maxPublished = 64 << 10

// lines calls handle with each line until the end; false if a line is too long or no JSON object.
func lines[T any](from *os.File, handle func(T)) bool {
	answers := bufio.NewReaderSize(from, maxPublished)
	for {
		answer, err := answers.ReadSlice('\n')
		var said T
		if err != nil {
			return !errors.Is(err, bufio.ErrBufferFull)
		}
		if json.Unmarshal(answer, &said) != nil {
			return false
		}
		handle(said)
	}
}

// listen handles the messages of a source or its standbys; a source that sends an invalid one has failed.
func listen[T any](s *Standbys, src *source, from *os.File, handle func(T)) {
	if lines(from, handle) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard(src, unfitDied, warmLine{}, time.Now())
}

// copies reports whether the standby is a fork of its source.
func (b *standby) copies() bool { return b.waits() && b.rank.PID != b.source.process.PID }

// shared reports whether the source serves several ranks.
func (src *source) shared() bool { return len(src.standbys) > 1 }

// begin makes the source import.
func (src *source) begin(own, modules, skip []string, now time.Time) {
	src.enter(sourceImporting)
	src.ration.begin(now)
	src.modules = modules
	src.begun++
	message := map[string]any{"modules": modules, "later": later, "skip": skip}
	if src.shared() || src.generation == 0 { // else it has them
		message["own"] = own
	}
	go func() { _ = sendLine(src.control, message) }() // it may read a long list slowly; if it has ended, reap handles that
}

// fork makes the source fork the missing standbys at once.
func (src *source) fork(now time.Time) {
	var missing []int
	for i, b := range src.standbys {
		if !b.waits() {
			b.enter(standbyForking, Process{})
			b.asked = now
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		_ = sendLine(src.control, map[string]any{"fork": missing}) // if it has ended, reap handles that
	}
}

// outdated reports whether there are modules that it was not sent.
func (src *source) outdated(modules []string) bool { return !slices.Equal(src.modules, modules) }

func (src *source) hangUp() {
	if src.control != nil {
		src.control.Close()
	}
	for _, b := range src.standbys {
		b.line.Close()
	}
}

// kill ends the source and its standbys.
func (src *source) kill() {
	if src.process.PID > 0 {
		_ = syscall.Kill(-src.process.PID, syscall.SIGKILL)
	}
	for _, b := range src.standbys {
		if b.copies() {
			b.rank.Kill()
		}
		b.enter(standbyAbsent, Process{})
	}
	src.hangUp()
}
