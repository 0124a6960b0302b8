//go:build linux

package proc

import (
	"bufio"
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
	// standbys are those that it serves: of all ranks of the pod, or of one.
	standbys []*standby
	ended    chan protocol.Exit // closed after its one value
	// modules is what it was sent to import, begun how often it was.
	modules []string
	begun   int
	// generation is the one that it was started in; 0: none had run here, so it lacks the variables that name ranks.
	generation int64
}

// standby waits to become one local rank: a copy of its source or, where the source serves one rank and is not copied, the source.
type standby struct {
	local  int
	source *source
	line   *os.File
	state  standbyState
	// rank is what waits, in ready and stale.
	rank Process
	// asked is when its source was last asked to fork one at once.
	asked time.Time
}

// warmLine is what a source says of itself.
type warmLine struct {
	// Half: half of the modules are imported. Warm: all are.
	Half bool `json:"half"`
	Warm bool `json:"warm"`
	// Alone is why it forks no standbys; empty: it does.
	Alone string `json:"alone"`
	CUDA  bool   `json:"cuda"`
	// Without names modules that no standby may have, because of Why: the source imports no more.
	Without []string `json:"without"`
	Why     string   `json:"why"`
	// Memory is what the source has for itself, without files that it shares with ranks.
	Memory uint64 `json:"memory"`
}

// readyLine is what a standby says when it waits for the line that makes it the rank.
type readyLine struct {
	Ready bool `json:"ready"`
	PID   int  `json:"pid"`
	// Learned is how often its source had been told to import before.
	Learned int `json:"learned"`
}

// newSource starts an interpreter that serves some local ranks.
func newSource(job *Job, run protocol.Run, locals []int) (*source, error) {
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
	c, err := job.command(locals[0], env, theirs...)
	if err == nil {
		src.process, err = startRank(c)
	}
	if err != nil {
		src.hangUp()
		return nil, err
	}
	src.ration.pid = src.process.PID
	return src, nil
}

// socketpair makes a connection of which one end is ours and the other a child's.
func socketpair() (our, their *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[0], true) // so that closing it ends who reads from it
	}
	if err != nil {
		return nil, nil, fmt.Errorf("making the socket to a standby: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "standby"), os.NewFile(uintptr(fds[1]), "standby"), nil
}

// sendLine sends a source, or who waits at a standby's line, one JSON object.
func sendLine(to *os.File, message map[string]any) error {
	line, err := json.Marshal(message)
	if err == nil {
		_, err = to.Write(append(line, '\n'))
	}
	return err
}

// maxPublished bounds a line from a process of the user's, which takes memory of the agent.
const maxPublished = 64 << 10

// lines calls heard with each line until there are no more; false where what came is too long or no JSON object.
func lines[T any](from *os.File, heard func(T)) bool {
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
		heard(said)
	}
}

// listen hears what a source, or who waits at one of its lines, says; a source that says what cannot be taken in has failed.
func listen[T any](s *Standbys, src *source, from *os.File, heard func(T)) {
	if lines(from, heard) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard(src, unfitDied, warmLine{}, time.Now())
}

// copies says that what waits is a copy of the source.
func (b *standby) copies() bool { return b.waits() && b.rank.PID != b.source.process.PID }

// shared says that several ranks have the source.
func (src *source) shared() bool { return len(src.standbys) > 1 }

// begin has it import.
func (src *source) begin(own, modules, skip []string, now time.Time) {
	src.enter(sourceImporting)
	src.ration.begin(now)
	src.modules = modules
	src.begun++
	message := map[string]any{"modules": modules, "later": later, "skip": skip}
	if src.shared() || src.generation == 0 { // else it has them
		message["own"] = own
	}
	go func() { _ = sendLine(src.control, message) }() // it may be slow to read a long list; where it has ended, reap knows
}

// fork has it fork the standbys that are missing, at once.
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
		_ = sendLine(src.control, map[string]any{"fork": missing}) // where it has ended, reap knows
	}
}

// outdated says that there are modules which it was not told of.
func (src *source) outdated(modules []string) bool { return !slices.Equal(src.modules, modules) }

func (src *source) hangUp() {
	if src.control != nil {
		src.control.Close()
	}
	for _, b := range src.standbys {
		b.line.Close()
	}
}

// kill ends the source and what it forked.
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
