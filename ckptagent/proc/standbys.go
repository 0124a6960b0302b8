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

// Standbys maintains one warm interpreter per local rank. They are forks of a source, which imports once for all ranks of the pod. If an
// imported module reads a variable that differs between ranks, there is one source per rank. A source imports with a small share of a
// processor: it is stopped and continued, which needs no privilege and is undone at once. If forks of a source would differ from it, the
// source of one rank becomes that rank itself.
//
// Invariants: a ready standby sleeps and costs only memory; a standby that was taken is in no slot; at most one source imports; while a
// generation starts or ends, no standby is ended and none imports. The states of sources and standbys, and the reasons to discard them, are
// in standbystate.go.
type Standbys struct {
	changed func(local int, ready bool)
	exits   *Exits
	share   share
	room    func() (uint64, bool)
	// publishing orders the callbacks about a rank; taken before mu.
	publishing sync.Mutex

	mu         sync.Mutex
	job        *Job
	run        protocol.Run
	supply     supply
	supplyWhy  string
	serving    serving
	servingWhy string
	pace       pace
	yields     bool
	modules    []string
	proof      proof
	// known are the module names for other pods.
	known []string
	// without are modules that sources found unfit for standbys, withoutWhy is the reason for the first.
	without    []string
	withoutWhy string
	// awaited is the wait of a generation before it starts its ranks; nil: none waits.
	awaited *awaited
	// slots has each rank's standby, in any state, while it has a source.
	slots     []*standby
	notBefore []time.Time
	failures  []int
	// sourceTook is the memory of the last source after its imports, rankTook that of a rank's imports, in bytes; 0: unknown.
	sourceTook, rankTook uint64
	// measured is when the container's memory was last read.
	measured time.Time
	// lost lists ranks whose standby died and whose callback has not run yet.
	lost []int
	// spent is the CPU time of warming between the last two checks, cost that of the last source in all.
	spent, cost time.Duration
	// since is when warming of the missing ones began.
	since time.Time
	wake  chan struct{}
}

// NewStandbys starts the goroutine that warms standbys after Configure, SetModules and SetWarm.
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

// Configure sets the job of the standbys; off is the reason why there are none, "": there are.
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

// SetModules sets what standbys import, and the bytes that this took in a rank (0: unknown). Existing sources import the new modules, and
// their standbys are forked again, when allowed. A list that is not longer changes nothing.
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

// Prove records that sources can import the modules and be copied: others of the gang, or earlier ones of this pod, did.
func (s *Standbys) Prove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prove()
}

// prove records, also for the next agent, that a source that is copied has imported the modules.
func (s *Standbys) prove() {
	s.proof = max(s.proof, proofShown)
	if s.job == nil || s.proof == proofNoted {
		return
	}
	if os.WriteFile(s.job.Root.ProvenModulesFile(), nil, 0o666) == nil { // after a failed write the next agent proves it again
		s.proof = proofNoted
	}
}

// Known returns the modules that standbys import, once a source has imported them and was forked, without invalid names and modules beyond
// the limit.
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

// SetWarm sets whether standbys may be warmed now, for the running generation; before the first one, at full speed.
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

// Yield sets whether sources leave most of the processors to a trial, even at full pace.
func (s *Standbys) Yield(yields bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.yields = yields
	s.poke()
}

// Note returns why there are no standbys, or which modules they leave out.
func (s *Standbys) Note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.supplyWhy, s.withoutWhy)
}

// Sessions returns the sessions of the standbys, which EndAll must spare.
func (s *Standbys) Sessions() []int {
	var out []int
	for _, p := range s.Processes() {
		out = append(out, p.PID)
	}
	return out
}

// Processes returns the standbys and their sources, for the next agent: it must end them, because their sockets lead to this one.
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

// Take turns the standby of a local rank into that rank, if it is ready. If the channel is not nil, it delivers the rank's exit.
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
		return rank, nil, true // the next standby follows
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

// sources returns each source once.
func (s *Standbys) sources() []*source {
	var out []*source
	for _, b := range s.slots {
		if b != nil && !slices.Contains(out, b.source) {
			out = append(out, b.source)
		}
	}
	return out
}

// publish reports whether a rank's standby is ready, even if that did not change.
func (s *Standbys) publish(local int) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	of := local < len(s.slots) // else of a previous launcher
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
