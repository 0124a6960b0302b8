//go:build linux

package loop

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// maxCheckLine bounds a line of a check process, maxCheckOutput what is read of it.
	maxCheckLine, maxCheckOutput = 16 << 10, 1 << 20
	// killWithin is how long the processes of a trial may take to end after SIGKILL. One that a driver holds longer is a finding.
	killWithin = 10 * time.Second
	// readWithin is how long output is read after all processes have ended.
	readWithin = time.Second
	// lookEvery is how often the time of the processes is checked.
	lookEvery = 100 * time.Millisecond
)

// try makes a trial in another goroutine, and posts Tried once none of its processes is left.
func (a *Agent) try(t protocol.Trial) {
	stop := make(chan struct{})
	a.endTrial = sync.OnceFunc(func() { close(stop) })
	job, ranks, mark, exits, spared := a.job, a.state.Ranks, a.c.Container, a.exits, a.standbys.Sessions()
	go func() {
		tries, stopped := runTrial(job, ranks, t, exits, stop)
		left := endTrial(proc.CheckMark(mark, t.TrialID), tries, spared)
		answer := ckptagent.JudgeTrial(t, readTries(tries, left))
		if stopped {
			answer = protocol.TrialAnswer{TrialID: t.TrialID, Outcome: protocol.TrialLost}
		}
		a.tried(answer)
	}()
}

// stopTrial ends a trial; one of an earlier incarnation by its mark.
func (a *Agent) stopTrial(id protocol.TrialID) {
	if a.endTrial != nil {
		a.endTrial() // its goroutine posts Tried
		return
	}
	mark := a.c.Container
	go func() {
		endTrial(proc.CheckMark(mark, id), nil, nil)
		a.tried(protocol.TrialAnswer{TrialID: id, Outcome: protocol.TrialLost})
	}()
}

// tried passes the answer to the core.
func (a *Agent) tried(answer protocol.TrialAnswer) {
	a.do(func() {
		a.endTrial = nil
		if answer.Outcome != protocol.TrialPassed {
			a.logf("node check, round %d: %s: %s", answer.Round, answer.Outcome, answer.Text)
		}
		a.take(ckptagent.Tried{Answer: answer})
	})
}

// rankTry is the check process of one local rank.
type rankTry struct {
	process proc.Process
	output  *os.File
	read    chan struct{} // closed once said is complete
	started time.Time
	mu      sync.Mutex
	said    ckptagent.Said // guarded by mu
	part    time.Time      // when its present part began; guarded by mu
	cut     bool           // its time is over; guarded by mu
}

// ended records the exit of a process whose time was not over.
func (r *rankTry) ended(exit protocol.Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.said.Exit = &exit
	}
}

// overdue reports whether the process still runs and must be killed.
func (r *rankTry) overdue(t protocol.Trial, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Exit == nil && r.said.Failed == "" && r.said.Overdue(t, now.Sub(r.started), now.Sub(r.part))
}

func (r *rankTry) cutOff() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
}

// runTrial starts a process per local rank, and returns when all have ended, their time is over, or stop is closed.
func runTrial(job proc.Job, ranks int, t protocol.Trial, exits *proc.Exits, stop <-chan struct{}) (tries []*rankTry, stopped bool) {
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	ended := make(chan struct{}, ranks)
	for local := range ranks {
		r := &rankTry{read: make(chan struct{}), started: time.Now()}
		tries = append(tries, r)
		var err error
		if r.process, r.output, err = job.StartCheck(t, local); err != nil {
			r.said = ckptagent.Said{Failed: err.Error()}
			close(r.read)
			ended <- struct{}{}
			continue
		}
		go r.follow()
		go func() {
			r.ended(r.process.Wait(exits))
			ended <- struct{}{}
		}()
	}
	for left := ranks; left > 0; {
		select {
		case <-ended:
			left--
		case now := <-looks.C:
			if slices.ContainsFunc(tries, func(r *rankTry) bool { return r.overdue(t, now) }) {
				for _, r := range tries {
					r.cutOff()
				}
				return tries, false
			}
		case <-stop:
			return tries, true
		}
	}
	return tries, false
}

// endTrial kills all processes of the trial with that mark; false: some did not end within killWithin.
func endTrial(mark string, tries []*rankTry, spared []int) bool {
	var processes []proc.Process
	for _, r := range tries {
		if r.process.PID > 1 {
			processes = append(processes, r.process)
		}
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		proc.EndAll(mark, processes, spared, 0)
	}()
	select {
	case <-gone:
		return true
	case <-time.After(killWithin):
		return false
	}
}

// readTries returns what the processes said; gone: all have ended, so that their output is complete.
func readTries(tries []*rankTry, gone bool) []ckptagent.Said {
	said := make([]ckptagent.Said, len(tries))
	for i, r := range tries {
		if r.output != nil {
			if gone {
				select {
				case <-r.read:
				case <-time.After(readWithin): // a process that escaped holds the output
				}
			}
			r.output.Close()
		}
		r.mu.Lock()
		said[i] = r.said
		r.mu.Unlock()
		if !gone && said[i].Exit == nil {
			said[i].Failed = fmt.Sprintf("process %d of the check does not end %s after SIGKILL: the kernel or a driver holds it", r.process.PID, killWithin)
		}
	}
	return said
}

// follow reads the output of the process: lines of JSON, and texts of libraries, of which the last one is kept.
func (r *rankTry) follow() {
	defer close(r.read)
	lines := bufio.NewReaderSize(io.LimitReader(r.output, maxCheckOutput), maxCheckLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			r.mu.Lock()
			before := r.said.Part
			if take(&r.said, line); r.said.Part != before {
				r.part = time.Now()
			}
			r.mu.Unlock()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
	}
	_, _ = io.Copy(io.Discard, r.output) // a full pipe would stop the process
}

// take adds a line to what a process said.
func take(s *ckptagent.Said, line []byte) {
	var said struct {
		Part    string                `json:"part"`
		Outcome protocol.TrialOutcome `json:"outcome"`
		Text    string                `json:"text"`
		Speed   float64               `json:"speed"`
		Model   string                `json:"model"`
		Backend string                `json:"backend"`
	}
	switch {
	case line[0] != '{' || json.Unmarshal(line, &said) != nil:
		s.Last = string(line)
	case said.Part != "":
		s.Part = said.Part
	case said.Outcome != "":
		s.Outcome, s.Text, s.Speed, s.Model, s.Backend = said.Outcome, said.Text, said.Speed, said.Model, said.Backend
	}
}
