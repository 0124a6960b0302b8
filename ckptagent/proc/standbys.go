//go:build linux

package proc

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

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

// Standbys keeps one warm interpreter per local rank. They are copies of a source, which imports once for all ranks of the pod where
// nothing that it imports asks for a variable of a single rank, else there is one source per rank. A source imports with a small share
// of a processor: it is stopped and continued, which needs no privilege and can be undone at once. Where a fork is no faithful copy, the
// source of one rank becomes that rank itself.
//
// Invariants: a standby that is ready sleeps and costs memory only; one that was taken is in no slot; at most one source imports; no
// standby is ended, and none imports, while a generation starts or ends.
type Standbys struct {
	changed func(local int, ready bool)
	exits   *Exits
	share   share
	room    func() (uint64, bool)
	// publishing keeps the order of what is said of a rank; taken before mu.
	publishing sync.Mutex

	mu      sync.Mutex
	job     *Job
	run     ckptagent.Run
	off     string // why standbys are off; empty: on
	short   string // why none is started now
	perRank string // why each rank has a source of its own; empty: one serves all
	modules []string
	// proven: the modules are known to be imported by a source that is copied, noted: the next agent will know; known are the names
	// that others may be told.
	proven, noted bool
	known         []string
	warm          bool
	// awaited are those that a generation waits for before it starts its ranks; nil: none does.
	awaited *awaited
	// slots has each rank's standby, ready or not, while it has a source.
	slots     []*standby
	notBefore []time.Time
	failures  []int
	need      uint64
	// lost are ranks whose standby is gone, which has yet to be told.
	lost []int
	// spent is the processor time that warming used between the last two looks, cost what the last source took in all.
	spent, cost time.Duration
	// since is when the warming of what is missing began.
	since time.Time
	wake  chan struct{}
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
	s.perRank = ""
	if job.Spec.Ranks > 1 && !slices.Equal(job.argv(0), job.argv(1)) {
		s.perRank = "its command line names the local rank"
	}
	s.poke()
}

// SetModules says what standbys import. Sources that are there import what is new, and their standbys are made anew, once they may; a
// list that is not longer changes nothing.
func (s *Standbys) SetModules(modules []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(modules) <= len(s.modules) {
		return
	}
	s.modules, s.known = slices.Clone(modules), nil
	s.poke()
}

// Trust is SetModules with a list that standbys are known to be able to import, for others of the gang do, or did so in this pod.
func (s *Standbys) Trust(modules []string) {
	s.SetModules(modules)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prove()
}

// prove notes, for the next agent too, that what standbys import is imported by a source that is copied.
func (s *Standbys) prove() {
	s.proven = true
	if s.job == nil || s.noted {
		return
	}
	err := os.WriteFile(s.job.Root.ProvenModulesFile(), nil, 0o666)
	s.noted = err == nil // else the next agent finds out by itself
}

// Known lists what standbys import, once a source has shown that it can and is copied; what is no name of a module, or too much, is
// left out.
func (s *Standbys) Known() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proven {
		return nil
	}
	if s.known == nil {
		s.known = sendable(s.modules)
	}
	return s.known
}

// SetWarm says whether standbys may be warmed now, for the generation that runs; with none, at full speed, before the first one.
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
	var out []int
	for _, p := range s.Processes() {
		out = append(out, p.PID)
	}
	return out
}

// Processes lists the standbys and their sources, for the next agent: it must end them, for they listen to this one.
func (s *Standbys) Processes() []Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Process
	for _, src := range s.sources() {
		out = append(out, src.process)
		for _, b := range src.standbys {
			if b.copies() {
				out = append(out, b.rank)
			}
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
	if err := tell(b.line, map[string]any{"pid": b.rank.PID, "env": s.job.env(run, local), "cwd": s.job.Launch.Dir}); err != nil {
		s.forget(b.source)
		return Process{}, nil, false
	}
	rank, copied := b.rank, b.copies()
	b.rank, b.ready, b.stale = Process{}, false, false
	if copied {
		return rank, nil, true // and another one a moment later
	}
	s.slots[local] = nil
	s.poke()
	b.source.hangUp()
	return rank, b.source.ended, true
}

// Close ends all standbys.
func (s *Standbys) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = "standbys are off: the launcher has returned"
	for _, src := range s.sources() {
		s.forget(src)
	}
}

// sources lists each once.
func (s *Standbys) sources() []*source {
	var out []*source
	for _, b := range s.slots {
		if b != nil && !slices.Contains(out, b.source) {
			out = append(out, b.source)
		}
	}
	return out
}

// forget ends a source and what it forked.
func (s *Standbys) forget(src *source) {
	for _, b := range src.standbys {
		if s.slots[b.local] == b {
			s.slots[b.local] = nil
			s.lost = append(s.lost, b.local)
		}
	}
	src.kill()
	s.poke()
}

// publish tells whether a rank's standby is ready, whatever was told before.
func (s *Standbys) publish(local int) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	ready := s.slots[local] != nil && s.slots[local].ready
	s.mu.Unlock()
	s.changed(local, ready)
}

func (s *Standbys) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Standbys) loop() {
	for {
		wait := s.look(time.Now())
		s.mu.Lock()
		lost := s.lost
		s.lost = nil
		s.mu.Unlock()
		for _, local := range lost {
			s.publish(local)
		}
		if wait > 0 {
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
	importing := s.importing()
	if s.awaited != nil {
		if s.worthwhile(now) {
			if importing != nil {
				importing.goOn(now)
			}
			return warmTick
		}
		s.giveUp(now)
		close(s.awaited.over)
		s.awaited = nil
	}
	if s.off != "" || !s.warm || len(s.modules) == 0 || s.job == nil {
		if importing != nil {
			importing.pause(now)
		}
		return 0
	}
	if importing != nil && s.run.Number == 0 {
		importing.goOn(now) // nothing runs that it could be in the way of
		return warmTick
	}
	if importing != nil {
		least := guaranteed(s.within(), s.missing(), s.cost, importing.used, now.Sub(s.since))
		s.spent = importing.duty(now, s.share.now(now, s.spent, least))
		return warmTick
	}
	if wait := s.fill(now); wait > 0 {
		return wait
	}
	if s.renew(now) {
		return warmTick
	}
	return 0
}

// fill starts a source where ranks have none. It says when to look again; 0: none is missing.
func (s *Standbys) fill(now time.Time) time.Duration {
	var wait time.Duration
	if s.perRank != "" && s.run.Number == 0 {
		return 0 // nobody knows yet which ranks they will be
	}
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
			if s.perRank != "" {
				s.short += "; each rank needs one of its own, because " + s.perRank
			}
			return memoryRetry
		}
		s.short = ""
		if s.since.IsZero() {
			s.since = now
		}
		if err := s.start(local, now); err != nil {
			s.short = err.Error()
			s.retryLater(now, s.together(local)...)
			return warmTick
		}
		return warmTick
	}
	return wait
}

// renew has one source import what it was not told of, and ends standbys that were forked before their source had imported that. It
// says whether there was anything to do.
func (s *Standbys) renew(now time.Time) bool {
	for _, src := range s.sources() {
		if !src.outdated(s.modules) {
			for _, b := range src.standbys {
				if b.stale && b.ready {
					b.drop()
				}
			}
			continue
		}
		s.since = now
		if src.standbys[0].rank.PID == src.process.PID { // it will be no source
			s.forget(src)
			return true
		}
		src.begin(s.job.own(s.run), s.modules, now)
		return true
	}
	return false
}

// importing is the source that has yet to import.
func (s *Standbys) importing() *source {
	for _, b := range s.slots {
		if b != nil && !b.source.warmed {
			return b.source
		}
	}
	return nil
}

// missing is how many sources are not warm.
func (s *Standbys) missing() int {
	n := 0
	for _, b := range s.slots {
		if b == nil || !b.source.warmed {
			n++
		}
	}
	if n > 0 && s.perRank == "" {
		return 1
	}
	return n
}

// within is how soon all standbys are to be there.
func (s *Standbys) within() time.Duration {
	if s.perRank == "" {
		return warmWithin
	}
	return warmEachWithin
}

// together lists the ranks that a source started for one of them serves.
func (s *Standbys) together(local int) []int {
	if s.perRank != "" {
		return []int{local}
	}
	all := make([]int, len(s.slots))
	for i := range all {
		all[i] = i
	}
	return all
}

// retryLater puts off the next source of these ranks, which had one that failed.
func (s *Standbys) retryLater(now time.Time, locals ...int) {
	for _, local := range locals {
		s.notBefore[local] = now.Add(min(standbyRetry<<min(s.failures[local], 10), standbyRetryMax))
		s.failures[local]++
	}
}

// start starts the source of a rank, or of all.
func (s *Standbys) start(local int, now time.Time) error {
	locals := s.together(local)
	src, err := newSource(s.job, s.job.sourceEnv(s.run, locals), locals, now)
	if err != nil {
		return err
	}
	for _, b := range src.standbys {
		s.slots[b.local] = b
		go listen(s, src, b.line, func(said readyLine) { s.heardStandby(b, said) })
	}
	go listen(s, src, src.control, func(said warmLine) { s.heardSource(src, said) })
	go s.reap(src)
	src.early = s.run.Number == 0
	src.begin(s.job.own(s.run), s.modules, now)
	return nil
}

// heardSource takes in what a source says of itself.
func (s *Standbys) heardSource(src *source, said warmLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := src.standbys[0]; s.slots[first.local] != first {
		return
	}
	src.half = src.half || said.Half
	if !said.Warm {
		return
	}
	defer s.poke()
	again := src.rss > 0
	switch {
	case said.CUDA: // it would hold memory of the device: better cold than in the way
		s.off = "standbys are off: a module that the script imports opens a GPU context at import"
		s.forget(src)
		return
	case said.Alone != "" && (src.shared() || src.early):
		s.perRank = said.Alone
		s.forget(src)
		return
	case said.Alone != "" && again: // it has forked and cannot any more; the next one becomes the rank itself
		s.forget(src)
		return
	}
	if !again {
		s.cost = max(src.used, time.Second/10)
		for _, b := range src.standbys {
			s.failures[b.local] = 0
		}
	}
	src.warmed, src.rss = true, max(said.RSS, 1)
	if s.missing() == 0 {
		s.since = time.Time{}
	}
	src.goOn(time.Now())
	if said.Alone == "" {
		s.prove()
	}
	if said.RSS > 0 {
		s.need = said.RSS + said.RSS/10
	}
	for _, b := range src.standbys {
		b.stale = again && b.ready
	}
	src.fork(time.Now()) // from now on nobody stops it
}

// heardStandby takes in that a standby waits for its line.
func (s *Standbys) heardStandby(b *standby, said readyLine) {
	if !said.Ready {
		return
	}
	s.mu.Lock()
	if s.slots[b.local] != b {
		s.mu.Unlock()
		return
	}
	rank := b.source.process
	if said.PID != rank.PID {
		st, err := readStat(said.PID)
		if err != nil { // it is gone again: its source forks another one
			s.mu.Unlock()
			return
		}
		rank = Process{PID: said.PID, Start: st.start}
		go s.watch(b, rank)
	}
	b.rank, b.ready = rank, true
	b.stale = said.Learned < b.source.begun // forked before, heard after what its source says of having learned more
	s.poke()
	s.mu.Unlock()
	s.publish(b.local)
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
		s.publish(b.local)
	}
}

// reap waits for the end of a source, or of the rank that it became.
func (s *Standbys) reap(src *source) {
	src.ended <- src.process.Wait(s.exits)
	close(src.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(src, time.Now())
}

// fail ends a source that is of no use, unless that was done, and puts off the next one of all the ranks that it serves.
func (s *Standbys) fail(src *source, now time.Time) {
	if first := src.standbys[0]; first.local >= len(s.slots) || s.slots[first.local] != first {
		return
	}
	s.forget(src)
	for _, b := range src.standbys {
		s.retryLater(now, b.local)
	}
}
