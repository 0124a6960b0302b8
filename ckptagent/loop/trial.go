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
	r := &trialRun{Trial: t, job: a.job, ranks: a.state.Ranks, source: a.checks, exits: a.exits, stop: stop}
	a.standbys.Yield(true)
	go func() {
		answer := r.run()
		a.standbys.Yield(false)
		a.tried(answer, r.apart)
	}()
}

// stopTrial ends a trial; one of an earlier incarnation by its mark, with what is left of the source of its processes.
func (a *Agent) stopTrial(id protocol.TrialID) {
	if a.endTrial != nil {
		a.endTrial() // its goroutine posts Tried
		return
	}
	mark, job := a.c.Container, a.job
	go func() {
		endTrial(job, proc.CheckMark(mark, id), nil)
		endTrial(job, proc.SourceMark(mark), nil)
		a.tried(protocol.TrialAnswer{TrialID: id, Outcome: protocol.TrialLost}, nil)
	}()
}

// tried passes the answer to the core. apart is why each process of the trial imported for itself; nil: they did not.
func (a *Agent) tried(answer protocol.TrialAnswer, apart error) {
	a.do(func() {
		a.endTrial = nil
		if apart != nil {
			a.logf("node check, round %d: each process imported for itself: %v", answer.Round, apart)
		}
		if answer.Outcome != protocol.TrialPassed {
			a.logf("node check, round %d: %s: %s", answer.Round, answer.Outcome, answer.Text)
		}
		a.take(ckptagent.Tried{Answer: answer})
	})
}

// trialRun is one trial of a pod.
type trialRun struct {
	protocol.Trial
	job    proc.Job
	ranks  int
	source *proc.CheckSource
	exits  *proc.Exits
	stop   <-chan struct{}
	apart  error // why each process imports for itself; nil: forks of the source are used
}

// run returns the answer, once no process of the trial is left.
func (r *trialRun) run() protocol.TrialAnswer {
	began := time.Now()
	why := r.source.Await(r.job, r.Trial, r.Imports, r.stop)
	var said []ckptagent.Said
	stopped := errors.Is(why, proc.ErrStopped)
	switch {
	case stopped:
	case errors.Is(why, proc.ErrImporting):
		said = []ckptagent.Said{r.late()}
	default:
		r.apart = why
		var tries []*rankTry
		tries, stopped = r.try(began)
		said = readTries(tries, endTrial(r.job, proc.CheckMark(r.job.Mark, r.TrialID), tries))
	}
	if stopped {
		return protocol.TrialAnswer{TrialID: r.TrialID, Outcome: protocol.TrialLost}
	}
	return ckptagent.JudgeTrial(r.Trial, said)
}

// late ends the source, whose imports have not ended.
func (r *trialRun) late() ckptagent.Said {
	said, p := ckptagent.Said{Part: ckptagent.PartImport}, r.source.Process()
	if !inTime(r.source.End()) {
		said.Failed = held(p)
	}
	return said
}

// try starts a process per local rank, forks of the source if these wait, and returns when all have ended, their time is over, or the trial
// is not wanted any more.
func (r *trialRun) try(began time.Time) (tries []*rankTry, stopped bool) {
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	defer func() {
		for _, one := range tries {
			one.cutOff()
		}
	}()
	ended := make(chan struct{}, r.ranks)
	for local := range r.ranks {
		way := func(start func(protocol.Trial, int, time.Duration) (proc.Process, *os.File, error)) starter {
			return func() (proc.Process, *os.File, error) { return start(r.Trial, local, r.Imports-time.Since(began)) }
		}
		ways := []starter{way(r.job.StartCheck)}
		if r.apart == nil {
			ways = []starter{way(r.source.StartCheck), ways[0]}
		}
		one := &rankTry{started: began}
		tries = append(tries, one)
		go func() {
			one.run(r.exits, ways)
			ended <- struct{}{}
		}()
	}
	for left := r.ranks; left > 0; {
		select {
		case <-ended:
			left--
		case now := <-looks.C:
			if slices.ContainsFunc(tries, func(one *rankTry) bool { return one.overdue(r.Trial, now) }) {
				return tries, false
			}
		case <-r.stop:
			return tries, true
		}
	}
	return tries, false
}

// starter starts a process, whose output can be read from the file.
type starter func() (proc.Process, *os.File, error)

// rankTry is the check process of one local rank.
type rankTry struct {
	started time.Time
	mu      sync.Mutex
	process proc.Process // guarded by mu, as all below
	output  *os.File
	read    chan struct{} // closed once said is complete
	said    ckptagent.Said
	part    time.Time // when its present part began
	cut     bool      // it is over: nothing is started or recorded any more
}

// run starts the process in the first way in which it begins a part, and waits for its end.
func (r *rankTry) run(exits *proc.Exits, ways []starter) {
	for i, start := range ways {
		last := i == len(ways)-1
		p, read, err := r.start(start)
		if err == nil {
			exit := p.Wait(exits)
			if !last && r.silent(read) {
				continue
			}
			r.ended(ckptagent.Said{Exit: &exit})
			return
		}
		if last {
			r.ended(ckptagent.Said{Failed: err.Error()})
		}
	}
}

var errCut = errors.New("the trial is over")

func (r *rankTry) start(start starter) (p proc.Process, read chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut {
		return p, nil, errCut
	}
	if r.output != nil {
		r.output.Close()
	}
	if r.process, r.output, err = start(); err != nil {
		return p, nil, err
	}
	r.read, r.said = make(chan struct{}), ckptagent.Said{}
	go r.follow(r.output, r.read)
	return r.process, r.read, nil
}

// silent reports whether a process that has ended has begun no part: a fork of the source that did not become the rank's process.
func (r *rankTry) silent(read chan struct{}) bool {
	await(read)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Part == "" && r.said.Outcome == ""
}

// ended records how the process has ended, or why it was not started.
func (r *rankTry) ended(end ckptagent.Said) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.said.Exit, r.said.Failed = end.Exit, end.Failed
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

// endTrial kills all processes of the trial with that mark; false: some did not end within killWithin.
func endTrial(job proc.Job, mark string, tries []*rankTry) bool {
	job.Mark = mark
	var processes []proc.Process
	for _, r := range tries {
		if r.process.PID > 1 {
			processes = append(processes, r.process)
		}
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		proc.EndAll(mark, processes, nil, 0, job.Hidden)
	}()
	return inTime(gone)
}

// inTime waits for the end of processes that were killed; false: some did not end within killWithin.
func inTime(gone <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	case <-time.After(killWithin):
		return false
	}
}

func held(p proc.Process) string {
	return fmt.Sprintf("process %d of the check does not end %s after SIGKILL: the kernel or a driver holds it", p.PID, killWithin)
}

// await waits until the output of a process that has ended was read, at most readWithin: another one may hold it.
func await(read <-chan struct{}) {
	select {
	case <-read:
	case <-time.After(readWithin):
	}
}

// readTries returns what the processes said; gone: all have ended, so that their output is complete.
func readTries(tries []*rankTry, gone bool) []ckptagent.Said {
	said := make([]ckptagent.Said, len(tries))
	for i, r := range tries {
		if r.output != nil {
			if gone {
				await(r.read)
			}
			r.output.Close()
		}
		r.mu.Lock()
		said[i] = r.said
		r.mu.Unlock()
		if !gone && said[i].Exit == nil {
			said[i].Failed = held(r.process)
		}
	}
	return said
}

// follow reads the output of the process: lines of JSON, and texts of libraries, of which the last one is kept.
func (r *rankTry) follow(output *os.File, read chan<- struct{}) {
	defer close(read)
	lines := bufio.NewReaderSize(io.LimitReader(output, maxCheckOutput), maxCheckLine)
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
	_, _ = io.Copy(io.Discard, output) // a full pipe would stop the process
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
