//go:build linux

package proc

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent"
)

// Settings of the warming of standbys.
const (
	// warmTick is how often the share is looked at: the longest that a rank may have to wait behind a standby; warmBurst how much unused share is kept.
	warmTick  = 4 * time.Millisecond
	warmBurst = 50 * time.Millisecond
	// standbyMemory is what a standby is taken to need before one has told.
	standbyMemory   = 400 << 20
	standbyRetry    = time.Second
	standbyRetryMax = time.Minute
	// memoryRetry is how long to wait where memory is short.
	memoryRetry = 10 * time.Second
)

// Standbys keeps one warm interpreter per local rank, warming one at a time with a small share of a
// processor: it is stopped and continued, which needs no privilege and can be undone at once. What has been warmed is
// a source that forks standbys, one at a time, where a fork is a faithful copy; else it becomes the rank itself.
//
// Invariants: a standby that is ready sleeps and costs memory only; one that was taken is in no slot.
type Standbys struct {
	changed func(local int, ready bool)
	exits   *Exits
	share   share
	room    func() (uint64, bool)

	mu        sync.Mutex
	job       *Job
	run       ckptagent.Run
	off       string // why standbys are off; empty: on
	short     string // why none is started now
	modules   []string
	warm      bool
	slots     []*standby
	notBefore []time.Time
	failures  []int
	need      uint64
	// spent is the processor time that warming used between the last two looks, cost what the last standby took in all.
	spent, cost time.Duration
	// since is when the warming of what is missing began.
	since time.Time
	wake  chan struct{}
}

// standby is one interpreter, and what it forked.
type standby struct {
	local   int
	process Process
	control *os.File
	ended   chan Ended // closed after its one value
	// warmed: it has imported. rank is what waits for its line: a copy, or the process itself; none where ready is false.
	warmed, ready bool
	rank          Process
	stopped       bool
	// credit is processor time that it may use; used what it had used at the last look.
	credit, used time.Duration
	looked       time.Time
}

// readyLine is what a standby says when it waits for the line that makes it the rank.
type readyLine struct {
	Ready bool   `json:"ready"`
	CUDA  bool   `json:"cuda"`
	RSS   uint64 `json:"rss"`
	// PID is the process that is ready: the standby's own, or a copy's.
	PID int `json:"pid"`
}

// NewStandbys starts the warming, which waits for Configure, SetModules and SetWarm.
func NewStandbys(exits *Exits, changed func(local int, ready bool)) *Standbys {
	s := &Standbys{changed: changed, exits: exits, share: newShare(), room: memoryRoom, need: standbyMemory, cost: warmCost, wake: make(chan struct{}, 1)}
	go s.loop()
	return s
}

// Configure says what standbys are for; off, if not empty, why there are none.
func (s *Standbys) Configure(job Job, off string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.job, s.off = &job, off
	s.slots, s.notBefore, s.failures = make([]*standby, job.Spec.Ranks), make([]time.Time, job.Spec.Ranks), make([]int, job.Spec.Ranks)
	s.poke()
}

// SetModules says what standbys import; those that are there keep what they have.
func (s *Standbys) SetModules(modules []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modules = modules
	s.poke()
}

// SetWarm says whether standbys may be warmed now, for the generation that runs.
func (s *Standbys) SetWarm(warm bool, run ckptagent.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if warm && !s.warm {
		s.since = time.Now()
	}
	s.warm, s.run = warm, run
	s.poke()
}

// Note says why there are no standbys, for people; empty where there are.
func (s *Standbys) Note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off != "" {
		return s.off
	}
	return s.short
}

// Sessions lists the sessions of the standbys, which are to be spared when a generation ends.
func (s *Standbys) Sessions() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int
	for _, b := range s.slots {
		if b == nil {
			continue
		}
		out = append(out, b.process.PID)
		if b.rank.PID != 0 {
			out = append(out, b.rank.PID)
		}
	}
	return out
}

// Processes lists the standbys, for the next agent: it must end them, for they listen to this one.
func (s *Standbys) Processes() []Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Process
	for _, b := range s.slots {
		if b == nil {
			continue
		}
		out = append(out, b.process)
		if b.copies() {
			out = append(out, b.rank)
		}
	}
	return out
}

// Take makes the standby of a local rank that rank, if it is ready. Its end comes by the channel, where there is one.
func (s *Standbys) Take(run ckptagent.Run, local int) (Process, <-chan Ended, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if local >= len(s.slots) || s.slots[local] == nil || !s.slots[local].ready {
		return Process{}, nil, false
	}
	b := s.slots[local]
	line, err := json.Marshal(map[string]any{"pid": b.rank.PID, "env": s.job.env(run, local), "cwd": s.job.Launch.Dir})
	if err != nil {
		return Process{}, nil, false
	}
	if _, err := b.control.Write(append(line, '\n')); err != nil {
		b.kill()
		s.slots[local] = nil
		return Process{}, nil, false
	}
	rank, copied := b.rank, b.copies()
	b.ready, b.rank = false, Process{}
	if copied {
		return rank, nil, true // and another one a moment later
	}
	s.slots[local] = nil
	b.control.Close()
	return rank, b.ended, true
}

// Close ends all standbys.
func (s *Standbys) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = "standbys are off: the launcher has returned"
	for i, b := range s.slots {
		if b != nil {
			b.kill()
			s.slots[i] = nil
		}
	}
}

func (s *Standbys) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Standbys) loop() {
	for {
		if wait := s.look(time.Now()); wait > 0 {
			select {
			case <-s.wake:
			case <-time.After(wait):
			}
		} else {
			<-s.wake
		}
	}
}

// look does what is due and says when to look again; 0: when something changes.
func (s *Standbys) look(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	warming := s.warming()
	if s.off != "" || !s.warm || len(s.modules) == 0 || s.job == nil {
		if warming != nil {
			warming.pause(now)
		}
		return 0
	}
	if warming != nil {
		s.spent = warming.duty(now, s.share.now(now, s.spent, guaranteed(s.missing(), s.cost, warming.used, now.Sub(s.since))))
		return warmTick
	}
	var wait time.Duration
	for local, b := range s.slots {
		if b != nil {
			continue
		}
		if d := s.notBefore[local].Sub(now); d > 0 {
			wait = max(d, warmTick)
			continue
		}
		if room, known := s.room(); known && room < s.need {
			s.short = fmt.Sprintf("standbys wait: one needs %d MiB and the container's memory limit leaves %d MiB; raise the limit or holdfast.dev/standby-memory",
				s.need>>20, room>>20)
			return memoryRetry
		}
		s.short = ""
		if s.since.IsZero() {
			s.since = now
		}
		if err := s.start(local, now); err != nil {
			s.short = err.Error()
			s.retryLater(local, now)
			continue
		}
		return warmTick
	}
	return wait
}

func (s *Standbys) warming() *standby {
	for _, b := range s.slots {
		if b != nil && !b.warmed {
			return b
		}
	}
	return nil
}

// missing is how many standbys are not warm.
func (s *Standbys) missing() int {
	n := 0
	for _, b := range s.slots {
		if b == nil || !b.warmed {
			n++
		}
	}
	return n
}

func (s *Standbys) retryLater(local int, now time.Time) {
	s.notBefore[local] = now.Add(min(standbyRetry<<min(s.failures[local], 10), standbyRetryMax))
	s.failures[local]++
}

func (s *Standbys) start(local int, now time.Time) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making the socket to a standby: %w", err)
	}
	control, theirs := os.NewFile(uintptr(fds[0]), "standby"), os.NewFile(uintptr(fds[1]), "standby")
	defer theirs.Close()
	c, err := s.job.command(s.job.standbyEnv(s.run, local, 3), theirs)
	if err == nil {
		var p Process
		if p, err = start(c); err == nil {
			b := &standby{local: local, process: p, control: control, ended: make(chan Ended, 1), looked: now}
			s.slots[local] = b
			go s.talk(b, slices.Clone(s.modules))
			go s.reap(b)
			return nil
		}
	}
	control.Close()
	return err
}

// talk hands the modules over and listens to the standby's words: one from the interpreter, or from each of its copies.
func (s *Standbys) talk(b *standby, modules []string) {
	line, _ := json.Marshal(map[string]any{"modules": modules})
	if _, err := b.control.Write(append(line, '\n')); err != nil {
		return
	}
	answers := bufio.NewReader(b.control)
	for {
		answer, err := answers.ReadBytes('\n')
		var r readyLine
		if err != nil || json.Unmarshal(answer, &r) != nil || !r.Ready {
			return
		}
		if rank, ready := s.heard(b, r); ready {
			s.changed(b.local, true)
			if rank.own == nil {
				go s.watch(b, rank)
			}
		}
	}
}

// heard takes in that a standby waits for its line.
func (s *Standbys) heard(b *standby, r readyLine) (rank Process, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[b.local] != b {
		return Process{}, false
	}
	if r.CUDA { // it would hold memory of the device: better cold than in the way
		s.off = "standbys are off: a module that the script imports opens a GPU context at import"
		b.kill()
		s.slots[b.local] = nil
		return Process{}, false
	}
	rank = b.process
	if r.PID != b.process.PID {
		st, err := readStat(r.PID)
		if err != nil { // it is gone again: its source forks another one
			return Process{}, false
		}
		rank = Process{PID: r.PID, Start: st.start}
	}
	b.rank, b.ready = rank, true
	if b.warmed {
		return rank, true
	}
	b.warmed, s.failures[b.local], s.cost = true, 0, max(b.used, time.Second/10)
	if s.missing() == 0 {
		s.since = time.Time{}
	}
	if b.stopped { // between its word and our reading it
		b.stopped = false
		_ = syscall.Kill(-b.process.PID, syscall.SIGCONT)
	}
	if r.RSS > 0 {
		s.need = r.RSS + r.RSS/10
	}
	s.poke()
	return rank, true
}

// watch hears of the end of a copy that was not taken; its source forks another one.
func (s *Standbys) watch(b *standby, rank Process) {
	waitGone(rank)
	s.mu.Lock()
	lost := s.slots[b.local] == b && b.rank == rank
	if lost {
		b.rank, b.ready = Process{}, false
	}
	s.mu.Unlock()
	if lost {
		s.changed(b.local, false)
	}
}

// reap waits for the end of a standby, or of the rank that it became.
func (s *Standbys) reap(b *standby) {
	b.ended <- b.process.Wait(s.exits)
	close(b.ended)
	s.mu.Lock()
	mine := b.local < len(s.slots) && s.slots[b.local] == b
	lost := mine && b.ready
	if mine {
		s.slots[b.local] = nil
		if b.copies() {
			b.rank.Kill()
		}
		b.control.Close()
		s.retryLater(b.local, time.Now())
		s.poke()
	}
	s.mu.Unlock()
	if lost {
		s.changed(b.local, false)
	}
}

// copies says that what waits is a copy of the process.
func (b *standby) copies() bool { return b.rank.PID != 0 && b.rank.PID != b.process.PID }

func (b *standby) kill() {
	_ = syscall.Kill(-b.process.PID, syscall.SIGKILL)
	if b.copies() {
		b.rank.Kill()
	}
	b.control.Close()
}

// duty stops the standby when it has used its share and continues it when it has some again. It returns what it used since the last look.
func (b *standby) duty(now time.Time, share float64) time.Duration {
	used, err := cpuTime(b.process.PID)
	if err != nil {
		return 0 // it has ended; reap knows
	}
	spent := used - b.used
	b.credit += time.Duration(share*float64(now.Sub(b.looked))) - spent
	b.credit = min(b.credit, warmBurst)
	b.used, b.looked = used, now
	switch {
	case b.credit < 0 && !b.stopped:
		b.stopped = true
		_ = syscall.Kill(-b.process.PID, syscall.SIGSTOP)
	case b.credit > 0 && (b.stopped || spent == 0):
		// Again where nothing goes on: a stop that comes while it forks its copy can outlast its end in the child, which nobody
		// but the agent can continue before it has left the group.
		b.stopped = false
		_ = syscall.Kill(-b.process.PID, syscall.SIGCONT)
	}
	return spent
}

// pause stops a standby that is being warmed while a generation ends or starts.
func (b *standby) pause(now time.Time) {
	if !b.stopped {
		b.stopped = true
		_ = syscall.Kill(-b.process.PID, syscall.SIGSTOP)
	}
	b.looked, b.credit = now, 0
}

func (l Limits) equal(o Limits) bool {
	return l.Umask == o.Umask && maps.Equal(l.Resource, o.Resource) && slices.Equal(l.CPUs, o.CPUs)
}
