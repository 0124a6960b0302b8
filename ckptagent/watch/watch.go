//go:build linux

package watch

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"holdfast.dev/holdfast/ckptagent/page"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// Limit is how long a look takes at most.
	Limit = 1500 * time.Millisecond
	// askFor is how long a rank has to answer: to take the signal and write its stack, and to send its record.
	askFor = time.Second
	// atOnce is how many records are read at the same time: each takes some memory.
	atOnce = 4
	// mostSignal is the highest number of a signal.
	mostSignal = 64
)

// Rank is a rank to look at.
type Rank struct {
	Local   int
	Process proc.Process
	// Page is the rank's page, of the generation that runs; zero: there is none.
	Page page.Page
	// Files is the common beginning of the rank's files for looks.
	Files string
	// RAS is where NCCL's RAS answers for the gang, if this is the rank that asks; "": it is another one.
	RAS string
	// Quiet are the ports whose TCP traffic shows no progress: the ranks' store is asked again and again while they stand still.
	Quiet []int
}

// Watcher looks at ranks. It remembers what its looks cost each process.
type Watcher struct {
	mu    sync.Mutex
	costs map[proc.Process]*cost
	// reading bounds how many records are read at once.
	reading chan struct{}
	// passing holds a value while the bytes of sockets are read.
	passing chan struct{}
}

// cost is what one process and its family used during looks, and the last that was reported of them.
type cost struct {
	looking bool // a look has not ended
	pid     int  // whose main thread was looked at
	spent   used
	said    used
	flows   flows
}

// used is what processes have used.
type used struct {
	cpu, main time.Duration
	io        uint64
}

// New returns a Watcher.
func New() *Watcher {
	return &Watcher{costs: map[proc.Process]*cost{}, reading: make(chan struct{}, atOnce), passing: make(chan struct{}, 1)}
}

// Look looks at ranks of a world of that size, and returns a look for each that lives, in order. It takes at most Limit. Where the size is
// unknown, 0, members of groups would mean nothing, and records are not read.
func (w *Watcher) Look(ranks []Rank, world int) []protocol.Look { return w.look(ranks, world, nil) }

// look looks at ranks, and keeps files about them if to is set.
func (w *Watcher) look(ranks []Rank, world int, to *Evidence) []protocol.Look {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	begun := proc.Snap()
	processes, quiet := make([]proc.Process, len(ranks)), []int(nil)
	for i, r := range ranks {
		processes[i] = r.Process
		quiet = append(quiet, r.Quiet...)
	}
	w.forget(begun)
	families := begun.Family(processes)
	passed := w.passed(families, slices.Compact(quiet), world)
	answers, asked := make(chan protocol.Look, len(ranks)), 0
	faults := askRAS(ctx, ranks, world)
	for i, r := range ranks {
		if len(families[i]) == 0 {
			continue
		}
		if w.enter(r.Process) {
			asked++
			go func() { answers <- w.one(r, families[i], begun, passed[i], world, to) }()
		}
	}
	var out []protocol.Look
	for late := false; len(out) < asked && !late; {
		select {
		case l := <-answers:
			out = append(out, l)
		case <-ctx.Done():
			late = true
		}
	}
	slices.SortFunc(out, func(a, b protocol.Look) int { return cmp.Compare(a.Local, b.Local) })
	addFaults(ctx, out, ranks, faults)
	return out
}

// forget drops what is remembered of processes that are gone.
func (w *Watcher) forget(living proc.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, c := range w.costs {
		if !living.Has(p) && !c.looking {
			delete(w.costs, p)
		}
	}
}

// one looks at one rank.
func (w *Watcher) one(r Rank, family []int, begun proc.Snapshot, passed traffic, world int, to *Evidence,
) protocol.Look {
	watched := proc.Process{PID: r.Page.PID, Start: r.Page.Start}
	armed := r.Page.Signal > 0 && r.Page.Signal <= mostSignal && slices.Contains(family, watched.PID) && begun.Has(watched)
	if !armed {
		watched = r.Process
	}
	l := protocol.Look{Local: r.Local, PID: watched.PID, State: begun.State(watched.PID), Processes: len(family)}
	if slices.Contains(family, r.Page.PID) { // a phase ends with the process that opened it
		l.Phase = r.Page.Phase.Open()
	}
	if l.State != 'R' {
		l.Native = cut(proc.WaitsIn(watched.PID), protocol.MaxLookText)
	}
	t := taken{}
	before := usedBy(begun, family, watched.PID)
	switch {
	case !armed:
	case l.State == 'T' || l.State == 't': // none of its threads runs
		l.Stack = protocol.StackWithheld
	default:
		t = w.ask(&l, process{Process: watched, signal: syscall.Signal(r.Page.Signal), file: r.Files + ".stack"}, r.Files, world, to)
	}
	after := before
	if armed {
		after = usedBy(proc.SnapOf(family), family, watched.PID)
	}
	w.end(r.Process, before, after, &l, passed)
	if to != nil {
		to.write(&l, &t)
	}
	return l
}

// ask asks a rank for its stack and its record. A rank that does not handle the signal is asked for neither: its interpreter has ended, and
// what its server answers from may have been destroyed.
func (w *Watcher) ask(l *protocol.Look, p process, files string, world int, to *Evidence) (t taken) {
	handles, pending := proc.Takes(p.PID, p.signal)
	if !handles || !p.Alive() {
		return t
	}
	t.asked = world > 0
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	var asked sync.WaitGroup
	if pending { // further signals would only queue up
		l.Stack = protocol.StackWithheld
	} else {
		asked.Go(func() { l.Stack, t.stack = p.stack(ctx) })
	}
	if world > 0 {
		w.record(ctx, l, p.PID, files, world, to, &t)
	}
	asked.Wait()
	l.Frames = parseStack(t.stack)
	return t
}

// record reads a rank's record, or keeps it; none where it does not answer.
func (w *Watcher) record(ctx context.Context, l *protocol.Look, pid int, files string, world int, to *Evidence, t *taken) {
	select {
	case w.reading <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-w.reading }()
	r := newRecorder(files+".sock", parseGroups(readOwned(files+".groups", pid)), world)
	if to != nil {
		t.records = r.keep(ctx, to, l.Local)
		return
	}
	if looks, err := r.looks(ctx); err == nil {
		l.Groups = looks
	}
}

// readOwned reads the beginning of a file that a process's user has made.
func readOwned(name string, pid int) []byte {
	f, err := openOwned(name, pid)
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, _ := io.ReadAll(io.LimitReader(f, mostGroupBytes))
	return raw
}

// enter begins a look at a rank, and reports whether that is possible: the previous one has ended.
func (w *Watcher) enter(p proc.Process) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.costs[key(p)]
	if c == nil {
		c = &cost{}
		w.costs[key(p)] = c
	}
	free := !c.looking
	c.looking = true
	return free
}

func key(p proc.Process) proc.Process { return proc.Process{PID: p.PID, Start: p.Start} }

// end ends a look at a rank, and fills in what the rank has used without looks. Of one process that only rises. A look costs no more
// I/O than a stack: the signal also ends a part of a long sendfile, whose bytes count only then.
func (w *Watcher) end(p proc.Process, before, after used, l *protocol.Look, passed traffic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.costs[key(p)]
	c.looking = false
	if c.pid != l.PID {
		*c = cost{pid: l.PID}
	}
	c.said = used{
		cpu:  max(c.said.cpu, before.cpu-c.spent.cpu),
		main: max(c.said.main, before.main-c.spent.main),
		io:   max(c.said.io, before.io-min(before.io, c.spent.io)),
	}
	c.spent.cpu += max(0, after.cpu-before.cpu)
	c.spent.main += max(0, after.main-before.main)
	c.spent.io += min(max(after.io, before.io)-before.io, mostStack)
	c.flows.add(passed)
	l.CPU, l.MainCPU, l.IO = c.said.cpu, c.said.main, c.said.io+c.flows.bytes
}

func usedBy(s proc.Snapshot, family []int, main int) used {
	cpu, io := s.Used(family)
	return used{cpu: cpu, main: proc.MainThreadTime(main), io: io}
}
