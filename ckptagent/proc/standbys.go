//go:build linux

package proc

import (
	"cmp"
	"os"
	"slices"
	"sync"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Standbys keeps one warm interpreter per local rank. They are forks of a source, which imports once for all ranks of the pod. If
// an imported module reads a variable that differs between ranks, there is one source per rank. A source imports with a small share
// of a processor: it is stopped and continued, which needs no privilege and can be undone at once. Where a fork is no faithful
// copy, the source of one rank becomes that rank itself.
//
// Invariants: a standby that is ready sleeps and costs memory only; one that was taken is in no slot; at most one source imports; no
// standby is ended, and none imports, while a generation starts or ends. The states of sources and standbys, and why one is of no use,
// stand in standbystate.go.
type Standbys struct {
	changed func(local int, ready bool)
	exits   *Exits
	share   share
	room    func() (uint64, bool)
	// publishing keeps the order of what is said of a rank; taken before mu.
	publishing sync.Mutex

	mu         sync.Mutex
	job        *Job
	run        protocol.Run
	supply     supply
	supplyWhy  string
	serving    serving
	servingWhy string
	pace       pace
	modules    []string
	proof      proof
	// known are the names that other pods may receive.
	known []string
	// without are modules that sources found unfit for standbys, and withoutWhy what is said of the first.
	without    []string
	withoutWhy string
	// awaited are those that a generation waits for before it starts its ranks; nil: none does.
	awaited *awaited
	// slots has each rank's standby, ready or not, while it has a source.
	slots     []*standby
	notBefore []time.Time
	failures  []int
	// sourceTook is the memory of the last source when it had imported, rankTook what imports took in a rank; 0: not known.
	sourceTook, rankTook uint64
	// measured is when the container's memory was last read.
	measured time.Time
	// lost lists ranks whose standby died and whose callback has not run yet.
	lost []int
	// spent is the processor time that warming used between the last two looks, cost what the last source took in all.
	spent, cost time.Duration
	// since is when the warming of what is missing began.
	since time.Time
	wake  chan struct{}
}

// NewStandbys starts the warming, which waits for Configure, SetModules and SetWarm.
func NewStandbys(exits *Exits, changed func(local int, ready bool)) *Standbys {
	s := &Standbys{
		changed: changed,
		exits:   exits,
		share:   newShare(),
		room:    memoryRoom,
		cost:    warmCost,
		wake:    make(chan struct{}, 1),
	}
	go s.loop()
	return s
}

// Configure sets what standbys are for; off is the reason why there are none, "": there are.
func (s *Standbys) Configure(job Job, off string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.sources() {
		s.discard(src, unfitClosed, warmLine{}, time.Now())
	}
	s.job = &job
	s.slots, s.notBefore, s.failures = make([]*standby, job.Spec.Ranks), make([]time.Time, job.Spec.Ranks), make([]int, job.Spec.Ranks)
	s.supply, s.supplyWhy, s.serving, s.servingWhy = supplyOn, "", servesPod, ""
	if off != "" {
		s.supplied(supplyOff, off)
	}
	if job.Spec.Ranks > 1 && !slices.Equal(job.argv(0), job.argv(1)) {
		s.serving, s.servingWhy = servesRank, "its command line names the local rank"
	}
	s.poke()
}

// SetModules sets what standbys import, and how many bytes that took in a rank (0: unknown). Existing sources import the new
// modules, and their standbys are forked again, when they may; a list that is not longer changes nothing.
func (s *Standbys) SetModules(modules []string, memory uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rankTook = cmp.Or(memory, s.rankTook)
	if len(modules) <= len(s.modules) {
		return
	}
	s.modules, s.known = slices.Clone(modules), nil
	s.poke()
}

// Prove says that sources are known to import the modules and to be copied: others of the gang are, or were in this pod.
func (s *Standbys) Prove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prove()
}

// prove notes, for the next agent too, that what standbys import is imported by a source that is copied.
func (s *Standbys) prove() {
	s.proof = max(s.proof, proofShown)
	if s.job == nil || s.proof == proofNoted {
		return
	}
	if os.WriteFile(s.job.Root.ProvenModulesFile(), nil, 0o666) == nil { // else the next agent finds out by itself
		s.proof = proofNoted
	}
}

// Known lists the modules that standbys import, after a source has imported them and was forked; invalid module names, and modules
// beyond the limit, are left out.
func (s *Standbys) Known() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proof == proofNone {
		return nil
	}
	if s.known == nil {
		s.known = sendable(s.modules)
	}
	return s.known
}

// SetWarm reports whether standbys may be warmed now, for the generation that runs; with none, at full speed, before the first one.
func (s *Standbys) SetWarm(warm bool, run protocol.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if warm && s.pace == paceHeld {
		s.since = time.Now()
	}
	s.run, s.pace = run, paceHeld
	switch {
	case warm && run.Number == 0:
		s.pace = paceFull
	case warm:
		s.pace = paceShare
	}
	s.poke()
}

// Note is the text of why there are no standbys, or which modules they leave out.
func (s *Standbys) Note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.supplyWhy, s.withoutWhy)
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
func (s *Standbys) Take(run protocol.Run, local int) (Process, <-chan protocol.Exit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if local >= len(s.slots) || s.slots[local] == nil || !s.slots[local].waits() {
		return Process{}, nil, false
	}
	b := s.slots[local]
	rank, src := b.rank, b.source
	if err := sendLine(b.line, map[string]any{"pid": rank.PID, "env": s.job.env(run, local), "cwd": s.job.Launch.Dir}); err != nil {
		s.discard(src, unfitLine, warmLine{}, time.Now())
		return Process{}, nil, false
	}
	if b.copies() {
		b.enter(standbyForking, Process{})
		return rank, nil, true // and another one a moment later
	}
	b.enter(standbyAbsent, Process{})
	src.enter(sourceTaken)
	s.slots[local] = nil
	s.poke()
	src.hangUp()
	return rank, src.ended, true
}

// Close ends all standbys.
func (s *Standbys) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.supplied(supplyOff, "standbys are off: the launcher has returned")
	for _, src := range s.sources() {
		s.discard(src, unfitClosed, warmLine{}, time.Now())
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

// publish tells whether a rank's standby is ready, whatever was told before.
func (s *Standbys) publish(local int) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	of := local < len(s.slots) // else of a launcher before
	ready := of && s.slots[local] != nil && s.slots[local].waits()
	s.mu.Unlock()
	if of {
		s.changed(local, ready)
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
