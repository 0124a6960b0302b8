//go:build linux

// Package loop is the agent's main loop. The loop collects events from processes, arenas, launchers and the
// coordinator, and passes them to ckptagent.Step one at a time. The loop stores the resulting state, then carries out
// the effects. All decisions are made by ckptagent.Step.
package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/coord"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/watch"
	"holdfast.dev/holdfast/internal/protocol"
)

// finishWait bounds the time to send the last report, refusalWait to send that of a refused launcher: only this report has the reason, and
// a pod that was just started may have to reach the coordinator first.
const (
	// tailsWait bounds how long a launcher waits for the rest of its ranks' output on the console.
	tailsWait   = 5 * time.Second
	finishWait  = time.Second
	refusalWait = 20 * time.Second
)

// Config is the agent's configuration from its pod.
type Config struct {
	Root        proc.Root
	Container   string // names this start of the container
	Init        int    // init's pid
	Coordinator string
	Addresses   []netip.Addr // of the coordinator
	CA          string
	PodIP       string
	PodUID      string
	HostNetwork bool // other pods have the same addresses and ports
	// Ranks is the number for which memory was counted; 0: unknown.
	Ranks      int
	StateBytes uint64
	Slots      uint32 // of each arena
	Standbys   bool
	// Storage is the claim's mount point; empty: no storage. Gang and JobUID name this job's folder in it.
	Storage, Gang, JobUID string
	// Ports are the ports that rank 0's store may use in this pod; the zero value: any.
	Ports proc.Ports
	// MaxRestarts is the job's limit of restarts; nil: unset, the launcher's counts.
	MaxRestarts *int
	// Grace is how long the pod has between SIGTERM and SIGKILL; 0: unknown.
	Grace time.Duration
	// Poke is init's pipe; nil without init.
	Poke *os.File
	Log  io.Writer
}

// Agent is one incarnation.
//
// All fields belong to the goroutine of Run, except types with their own lock; other goroutines send functions to inbox.
type Agent struct {
	c     Config
	state ckptagent.State
	inbox chan func()
	queue []ckptagent.Event

	exits    *proc.Exits
	command  *proc.Command // nil: init began none
	launch   *proc.Launch
	shim     proc.Process // of the present launcher, which this agent or an earlier one accepted
	user     *uint32      // of the first launcher; nil: none has connected
	job      proc.Job
	ranks    map[int]proc.Process
	ranksOf  int64           // the generation that ranks belong to
	watchers *sync.WaitGroup // one for each rank process of the present generation
	standbys *proc.Standbys
	checks   *proc.CheckSource
	tails    *proc.Tails // of the newest generation; nil: its output is not shown by the agent
	// returning are launchers that return once the output is on the console.
	returning  sync.WaitGroup
	arenas     *arena.Set
	arenaOff   string                // why state in memory is off
	needed     uint64                // size of a rank's state that exceeds a slot; 0: it fits
	blocks     map[int]format.Reason // by local rank: why its saves are copied only inside save
	polls      []chan struct{}
	following  *sync.WaitGroup // the goroutines that read the arenas
	port       proc.Port
	noPort     string // why there is no port
	client     *coord.Client
	modules    []string
	pages      []rankPage // of all ranks, once a launcher has set their number
	pageOff    string     // why a rank has no page
	watcher    *watch.Watcher
	starting   *ckptagent.Start // the generation whose ranks wait for standbys; nil: none
	endTrial   func()           // ends the trial that runs; nil: none does
	unstarted  bool             // the stored state does not show that the previous agent started the generation's ranks
	uploader   *uploader        // nil: no storage
	noUploader string           // why there is no storage

	stored       string             // newest content of the state file
	pendingTasks []ckptagent.Effect // deferred because the state could not be stored
	unstored     bool
	// unstoredWhy is why the state is not stored, for users; told is the last report sent of a stored state.
	unstoredWhy string
	lastReport  protocol.Report
	noExitCode  error         // why the container's exit code could not be written; nil: it was, or there is none
	ready       chan struct{} // closed once the state was first stored
	signals     chan os.Signal
	signalled   bool
}

// newAgent returns an incarnation without state.
func newAgent(c Config) (a *Agent, err error) {
	a = &Agent{
		c:        c,
		state:    ckptagent.New(),
		inbox:    make(chan func(), 256),
		signals:  make(chan os.Signal, 8),
		ranks:    map[int]proc.Process{},
		blocks:   map[int]format.Reason{},
		watchers: &sync.WaitGroup{},
		watcher:  watch.New(),
		exits:    proc.NewExits(c.Root, c.Poke),
		ready:    make(chan struct{}),
	}
	a.checks = proc.NewCheckSource(a.exits)
	a.standbys = proc.NewStandbys(a.exits, func(local int, ready bool) { a.post(ckptagent.StandbyChanged{Local: local, Ready: ready}) })
	a.client, err = coord.New(coord.Options{
		Target:          c.Coordinator,
		Addresses:       c.Addresses,
		CA:              c.CA,
		TokenFile:       c.Root.Token(),
		AuthoritiesFile: c.Root.AuthoritiesFile(),
		Address:         c.PodIP,
		Directed:        func(d protocol.Directive) { a.post(ckptagent.Directed{Directive: d}) },
		Disconnected:    a.lost(),
		Contact:         func(up bool) { a.post(ckptagent.Contact{Up: up}) },
		DetachedFromJob: func() { a.post(ckptagent.DetachedFromJob{}) },
	})
	if err != nil {
		return nil, err
	}
	a.uploader, a.noUploader = newUploader(a)
	return a, nil
}

// Run runs the agent until a signal ends it and all its processes have ended.
func Run(ctx context.Context, c Config) error {
	a, err := newAgent(c)
	if err != nil {
		return err
	}
	signal.Notify(a.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(a.signals)
	defer a.standbys.Close()
	defer a.checks.End()
	a.resume()
	closeSockets, err := a.listen()
	if err != nil {
		return err
	}
	defer closeSockets()
	talkCtx, stop := context.WithCancel(ctx)
	defer stop()
	talking := make(chan struct{})
	go func() {
		defer close(talking)
		select {
		case <-a.ready: // an incarnation that is not stored must not report
			a.client.Run(talkCtx)
		case <-talkCtx.Done():
		}
	}()
	a.loop(ctx)
	a.returning.Wait()
	a.client.Finish()
	if a.uploader != nil {
		a.uploader.fs.Close()
	}
	wait := finishWait
	if a.state.Refused != "" || a.state.Whole && a.state.Phase == protocol.StateFinished { // no later agent of this pod will report it
		wait = refusalWait
	}
	select {
	case <-talking:
	case <-time.After(wait):
	}
	return a.noExitCode
}

// lost logs why the stream to the coordinator ended, once per reason.
func (a *Agent) lost() func(error) {
	last := ""
	return func(err error) {
		if err == nil || err.Error() == last {
			return
		}
		last = err.Error()
		a.logf("coordinator: %v", err)
	}
}

func (a *Agent) logf(format string, args ...any) {
	fmt.Fprintf(a.c.Log, "holdfast: "+format+"\n", args...)
}

// do runs f in the agent's goroutine; post passes an event to take there.
func (a *Agent) do(f func())             { a.inbox <- f }
func (a *Agent) post(e ckptagent.Event)  { a.do(func() { a.take(e) }) }
func (a *Agent) later(e ckptagent.Event) { a.queue = append(a.queue, e) }

func (a *Agent) loop(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !a.done() {
		select {
		case <-ctx.Done():
			return
		case f := <-a.inbox:
			f()
		case s := <-a.signals:
			a.signalled = true
			a.take(ckptagent.Signalled{Signal: int(s.(syscall.Signal))})
		case <-tick.C:
			if a.state.BarrierStep != 0 && a.arenas != nil {
				a.arenas.SetBarrier(a.state.BarrierStep) // clients drop a barrier that is not repeated
			}
			a.settleModules(time.Now())
			if a.port.Number == 0 {
				a.offerPort()
			}
			a.reportCapabilities()
			a.take(ckptagent.Tick{})
		}
	}
}

// done reports whether no process of the agent is left, its duties are done, and no launcher can connect: while the command runs, one may
// still wait for its result. Without init only a signal decides that.
func (a *Agent) done() bool {
	switch {
	case a.unstored || len(a.pendingTasks) > 0:
		return false
	case a.state.Whole:
		return a.state.Returned != nil
	case a.command != nil && a.state.Command.Exit == nil, a.command == nil && !a.signalled:
		return false
	}
	return a.state.Clean && (a.state.Launcher == "" || a.state.Returned != nil)
}

// take passes an event to the core and carries out the effects, and handles the events that these cause.
func (a *Agent) take(e ckptagent.Event) {
	a.later(e)
	for len(a.queue) > 0 {
		e, a.queue = a.queue[0], a.queue[1:]
		var effects []ckptagent.Effect
		before := a.state.Timeline
		a.state, effects = ckptagent.Step(a.state, e, time.Now())
		switch e.(type) {
		case ckptagent.Progress, ckptagent.OptimizerSteps, ckptagent.Saved, ckptagent.Sealed, ckptagent.StandbyChanged, ckptagent.Looked,
			ckptagent.Kept:
			// These values are in the arenas or pages, or concern only this incarnation, except when a recovery ended.
			if a.state.Timeline != before {
				a.store()
			}
		default:
			a.store()
		}
		a.pendingTasks = append(a.pendingTasks, effects...)
		for !a.unstored && len(a.pendingTasks) > 0 {
			f := a.pendingTasks[0]
			a.pendingTasks = a.pendingTasks[1:]
			a.carryOut(f)
		}
	}
	if !a.unstored {
		a.lastReport = a.state.Report()
		a.client.Update(a.lastReport)
	} else if a.lastReport.Incarnation > 0 { // repeat the last report, marked as final
		r := a.lastReport
		r.Notes = append(slices.Clip(r.Notes), a.unstoredWhy)
		a.client.Update(r)
	}
}

// persisted is the content of the state file.
type persisted struct {
	Container string               `json:"container"`
	State     ckptagent.Durable    `json:"state"`
	Ranks     map[int]proc.Process `json:"ranks"`
	RanksOf   int64                `json:"ranksOf"` // a generation is stored before its ranks are started
	Standbys  []proc.Process       `json:"standbys"`
	Shim      proc.Process         `json:"shim"`
	User      *uint32              `json:"user,omitempty"`
}

// store writes the state file if it changed. The rename makes the write atomic; the file need not survive the machine, so there is no
// fsync. While it cannot be written, no effect is carried out and no report is sent; each event, at least one per second, retries.
func (a *Agent) store() {
	k := persisted{
		Container: a.c.Container,
		State:     a.state.Stored(),
		Ranks:     a.ranks,
		RanksOf:   a.ranksOf,
		Standbys:  a.standbys.Processes(),
		Shim:      a.shim,
		User:      a.user,
	}
	raw, err := json.Marshal(k)
	if err != nil {
		panic(fmt.Sprintf("encoding the agent's state: %v", err)) // plain values
	}
	if string(raw) == a.stored && !a.unstored {
		return
	}
	if err := proc.Replace(a.c.Root.StateFile(), raw); err != nil {
		if !a.unstored {
			a.logf("storing the agent's state, without which nothing is done; trying again: %v", err)
		}
		a.unstored = true
		a.unstoredWhy = fmt.Sprintf("the agent cannot store its state and waits until it can: %v; free space in volume holdfast, or delete the pod", err)
		return
	}
	if a.stored == "" {
		close(a.ready)
	}
	a.stored, a.unstored = string(raw), false
}

// blocking returns why ranks copy only inside save; of several reasons the lowest rank's.
func (a *Agent) blocking() string {
	for _, local := range slices.Sorted(maps.Keys(a.blocks)) {
		if why := a.blocks[local]; why != 0 {
			return "checkpoints are copied inside save, not in the background: " + why.String()
		}
	}
	return ""
}

// reportCapabilities passes to the core what the adapters provide, with notes for users.
func (a *Agent) reportCapabilities() {
	t := ckptagent.Capabilities{Grace: a.c.Grace, Modules: a.standbys.Known()}
	if a.arenas != nil {
		t.StateBytes = a.c.StateBytes
	}
	storage := a.noUploader
	if a.uploader != nil {
		known := false
		known, t.Storage, storage = a.uploader.status(time.Now())
		t.Storage, t.Unsure = t.Storage && a.arenas != nil, !known
	}
	tooSmall := ""
	if a.needed > a.c.StateBytes {
		tooSmall = fmt.Sprintf("state in memory is not kept: it needs %d MiB and a slot holds %d MiB; set holdfast.dev/state-size to %dMi",
			(a.needed+1<<20-1)>>20, a.c.StateBytes>>20, (a.needed+1<<20-1)>>20)
	}
	standbys := a.standbys.Note()
	if standbys == "" {
		standbys = a.noHook(time.Now())
	}
	noPort := a.noPort
	if !a.state.Clean { // the store of its own rank may use it
		noPort = ""
	}
	ranged := rangeNote(&a.job.Spec, &a.state.Run)
	for _, note := range []string{a.wholeNote(), ranged, a.arenaOff, tooSmall, a.blocking(), storage, standbys, noPort} {
		if note != "" {
			t.Notes = append(t.Notes, note)
		}
	}
	a.take(t)
}
