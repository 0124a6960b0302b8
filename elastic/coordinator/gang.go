package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/retry"
)

const (
	// writeEvery is the shortest interval between two writes of progress.
	writeEvery = 2 * time.Second
	// waitForGang is how long an agent waits for its Gang to be created.
	waitForGang = 10 * time.Second
	// pollsPerSecond and pollsBurst limit the repeated queries for missing Gangs, of all agents: any user who creates pods can name any
	// Gang.
	pollsPerSecond, pollsBurst = 10, 20
	// retryFirst and retryMost bound the delay before a failed write is retried.
	retryFirst, retryMost = 10 * time.Millisecond, time.Second
	// maxNotices bounds the notices that wait to be written.
	maxNotices = 64
)

// gang joins the core's state of one gang with its streams and its store.
type gang struct {
	key    Key
	server *Server
	cancel context.CancelFunc
	ctx    context.Context
	// users and uses count streams; guarded by the server.
	users, uses int
	// wake notifies the writer of work.
	wake chan struct{}

	loading sync.Mutex // held while the record is read

	mu      sync.Mutex
	state   *elastic.State // nil until loaded; this and all below guarded by mu
	streams map[*stream]bool
	current map[elastic.Slot]*stream // the newest stream of the slot's newest pod
	kept    keptBySlot
	persist *elastic.Persist // to be stored at once
	end     *elastic.Verdict // for which the job must be failed
	dirty   bool             // the record has changed
	notices []elastic.Notice
	counted int64 // newest generation in the metrics
	modules *moduleList
	sender  *stream // of the agent that was asked for its modules; nil: none
	// refusedLists counts refused lists of modules: it is logged each time that it has doubled.
	refusedLists int
}

// errOver: the gang is gone, and how its pods end has no consequence.
var errOver = status.Error(codes.NotFound, "the Job is over")

func newGang(s *Server, key Key) *gang {
	ctx, cancel := context.WithCancel(s.ctx)
	g := &gang{
		key:     key,
		server:  s,
		ctx:     ctx,
		cancel:  cancel,
		wake:    make(chan struct{}, 1),
		streams: map[*stream]bool{},
		current: map[elastic.Slot]*stream{},
		kept:    keptBySlot{},
	}
	context.AfterFunc(ctx, g.forgetKept)
	context.AfterFunc(ctx, g.forgetGaps)
	return g
}

func (g *gang) loaded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state != nil
}

func (g *gang) members() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Members()
}

// load reads the record once; it waits a while for a Gang that is being created.
func (g *gang) load(ctx context.Context) error {
	g.loading.Lock()
	defer g.loading.Unlock()
	if g.loaded() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, waitForGang)
	defer cancel()
	pauses := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 5, Cap: 2 * time.Second}
	for {
		members, settings, record, err := g.server.Store.Load(ctx, g.key)
		if err == nil {
			g.mu.Lock()
			g.state, g.counted = elastic.New(members, settings.Every, record), record.Generation
			for _, e := range settings.Events() {
				g.step(e)
			}
			g.mu.Unlock()
			go g.write()
			go g.tick()
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return status.Errorf(codes.Unavailable, "reading the record of gang %s: %v", g.key, err)
		}
		if over, err := g.server.Store.Over(ctx, g.key); err == nil && over {
			return errOver // its Gang was deleted with it
		}
		select {
		case <-ctx.Done():
		case <-time.After(pauses.Step()):
		}
		if err := g.server.polls.Wait(ctx); err != nil {
			return status.Errorf(codes.Unavailable, "Gang %s of this job does not exist yet: dial again", g.key)
		}
	}
}

// attach makes a stream the present one of its pod.
func (g *gang) attach(st *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streams[st] = true
	old := g.current[st.peer.Slot]
	switch {
	case old == nil, g.state.TakesOver(st.peer.Pod, old.peer.Pod):
		g.current[st.peer.Slot] = st
	case old.peer.Pod.UID == st.peer.Pod.UID:
		g.current[st.peer.Slot] = st
		delete(g.streams, old)
		if g.sender == old {
			g.sender = nil
		}
		close(old.gone)
	}
	g.server.metrics.agents.Set(float64(g.server.attached(1)))
}

func (g *gang) detach(st *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.server.metrics.agents.Set(float64(g.server.attached(-1)))
	delete(g.streams, st)
	if g.sender == st {
		g.sender = nil
	}
	if g.current[st.peer.Slot] == st {
		delete(g.current, st.peer.Slot)
		g.step(elastic.Detached{Slot: st.peer.Slot, Pod: st.peer.Pod.UID})
	}
}

// reported handles a report, or returns why the stream must end. reported drops the report of a stream that another one of the pod has
// replaced.
func (g *gang) reported(st *stream, r protocol.Report) error {
	g.server.noteContact(st.peer.Pod.UID, time.Now())
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.streams[st] {
		return nil
	}
	news := g.recordModules(st, r.ModulesKnown, r.Modules)
	r.Modules = nil // stored once for the gang, not for each of its pods
	if err := g.keep(st.peer.Slot, &r); err != nil {
		return err
	}
	g.step(elastic.Reported{Slot: st.peer.Slot, Pod: st.peer.Pod, Report: r})
	g.recount(st.peer.Slot)
	st.offer(g.nextMessage(st))
	if news {
		g.broadcast()
	}
	return nil
}

// step passes an event to the core and carries out its effects, or passes them to the writer. The caller holds g.mu.
func (g *gang) step(e elastic.Event) {
	direct, wake := false, false
	for _, eff := range elastic.Step(g.state, e, time.Now()) {
		switch eff := eff.(type) {
		case elastic.Persist:
			g.persist, wake = &eff, true
		case elastic.End:
			g.end, wake = &eff.Verdict, true
		case elastic.PersistLater:
			g.dirty, wake = true, true
		case elastic.EmitEvent:
			g.notices, wake = append(g.notices[max(0, len(g.notices)-maxNotices+1):], eff.Notice), true
		case elastic.Broadcast:
			direct = true
		case elastic.Wake:
			time.AfterFunc(eff.After, g.wakeUp)
		case elastic.Replace:
			g.server.replacements.Add(replacement{g, eff.Termination})
		case elastic.LookupHolders:
			go g.lookUpHolders(eff.Slots)
		case elastic.LookupNodes:
			go g.lookUpNodes(eff.Names)
		case elastic.NotePasses:
			go g.server.Store.NotePasses(g.ctx, g.key, eff.Passes)
		case elastic.Forgive:
			go g.server.Store.Forgive(g.ctx, g.key, eff.Node)
		case elastic.GoBackRefused: // nothing sends GoBack yet
		case elastic.Settled:
			g.server.metrics.settled(eff.Recovery)
			if g.server.Settled != nil {
				g.server.Settled(g.key, eff.Recovery)
			}
		case elastic.MadeDurable:
			g.madeDurable(eff.Gap)
		case elastic.Judged:
			g.server.metrics.standstills.WithLabelValues(string(eff.Kind)).Inc()
		case elastic.Checked:
			g.server.metrics.checked(eff)
		case elastic.Saved:
			g.countSaves(eff.Saves)
		}
	}
	if direct {
		g.broadcast()
	}
	if wake {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// wakeUp sends a Tick to the core, unless the gang was dropped.
func (g *gang) wakeUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() == nil {
		g.step(elastic.Tick{})
	}
}

// madeDurable records a gap in the metrics, unless the gang was dropped: a write may complete after that. The caller holds g.mu.
func (g *gang) madeDurable(gap time.Duration) {
	if g.ctx.Err() == nil {
		g.server.metrics.durable(g.key, gap)
	}
}

// countSaves counts the results of saves, unless the gang was dropped. The caller holds g.mu.
func (g *gang) countSaves(s protocol.Saves) {
	if g.ctx.Err() == nil {
		g.server.metrics.saved(g.key, s)
	}
}

// forgetGaps drops the metrics of a dropped gang.
func (g *gang) forgetGaps() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.server.metrics.forget(g.key)
}

// broadcast offers its newest directive to each agent that has reported. The caller holds g.mu.
func (g *gang) broadcast() {
	for st := range g.streams {
		if st.asked {
			st.offer(g.nextMessage(st))
		}
	}
}

// nextMessage returns the message for an agent now. The caller holds g.mu.
func (g *gang) nextMessage(st *stream) message {
	w := message{Directive: g.state.Directive(st.peer.Slot, st.peer.Pod.UID)}
	w.WantModules = g.sender == st
	if st.knows == 0 {
		w.modules = g.modules
	}
	return w
}

// work is the writer's next work.
type work struct {
	persist *elastic.Persist
	end     *elastic.Verdict
	notices []elastic.Notice
	dirty   bool
}

func (g *gang) take() work {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := work{persist: g.persist, end: g.end, notices: g.notices, dirty: g.dirty}
	g.persist, g.end, g.notices = nil, nil, nil
	return w
}

// joined makes one notice of those with one reason, a line each: events that differ only in their note become one, with the first note. The
// store shortens a long one in its middle.
func joined(notices []elastic.Notice) (out []elastic.Notice) {
	for _, n := range notices {
		same := func(o elastic.Notice) bool { return o.Reason == n.Reason && o.Warning == n.Warning }
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i].Message += "\n" + n.Message
		} else {
			out = append(out, n)
		}
	}
	return out
}

// write stores records: at once if the core waits for them, otherwise at intervals.
func (g *gang) write() {
	timer := time.NewTimer(writeEvery)
	timer.Stop()
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-g.wake:
		case <-timer.C:
		}
		w := g.take()
		if w.persist != nil {
			g.store(*w.persist)
			last = time.Now()
		}
		if w.end != nil {
			g.retry("making the job fail", func() error { return g.server.Store.End(g.ctx, g.key, *w.end) })
			g.mu.Lock()
			g.step(elastic.Ended{})
			g.mu.Unlock()
		}
		for _, n := range joined(w.notices) {
			g.server.Store.Announce(g.ctx, g.key, n)
		}
		if !w.dirty {
			continue
		}
		if wait := writeEvery - time.Since(last); wait > 0 {
			timer.Reset(wait)
			continue
		}
		g.progress()
		last = time.Now()
		timer.Reset(writeEvery) // for a retry, if needed
	}
}

// store writes a record that the core waits for, retries until it succeeds, and passes Stored to the core.
func (g *gang) store(p elastic.Persist) {
	begun := time.Now()
	if !g.retry("storing the record", func() error {
		g.mu.Lock()
		if g.persist != nil { // a newer record replaces this one
			p, g.persist = *g.persist, nil
		}
		g.mu.Unlock()
		return g.server.Store.Persist(g.ctx, g.key, p.Record)
	}) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.server.metrics.stored(p.Record, p.Record.Generation > g.counted, time.Since(begun))
	g.counted = max(g.counted, p.Record.Generation)
	g.step(elastic.Stored{Revision: p.Revision, Generation: p.Record.Generation})
}

// progress writes what users see; after a failure the next write has it.
func (g *gang) progress() {
	g.mu.Lock()
	r := g.state.Snapshot()
	g.dirty = false
	must := g.persist != nil
	g.mu.Unlock()
	if must {
		return // that write includes it
	}
	if err := g.server.Store.Persist(g.ctx, g.key, r); err != nil && g.ctx.Err() == nil {
		if errors.Is(err, ErrSuperseded) {
			g.server.Log.Error(err, "the gang is dropped from memory", "gang", g.key)
			g.server.abandon(g)
			return
		}
		if g.obsolete(err) {
			return
		}
		g.server.Log.Info("progress is not written", "gang", g.key, "because", err.Error())
		g.mu.Lock()
		g.dirty = true
		g.mu.Unlock()
	}
}

// obsolete reports whether a write is pointless after an error: the Job is over.
func (g *gang) obsolete(err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Over() && apierrors.IsNotFound(err)
}

// givenUp reports whether something that failed that many times is given up: the gang was dropped, or its object is gone. A permanent
// failure is logged each time that the number of tries has doubled.
func (g *gang) givenUp(what string, tries int, err error) bool {
	switch {
	case g.ctx.Err() != nil, g.obsolete(err):
		return true
	case errors.Is(err, ErrSuperseded):
		g.server.Log.Error(err, what+" is given up, and the gang dropped from memory", "gang", g.key)
		g.server.abandon(g)
		return true
	}
	if tries&(tries-1) == 0 {
		g.server.Log.Error(err, what+" failed; retrying", "gang", g.key, "tries", tries)
	}
	return false
}

// retry calls do until it succeeds, is pointless or the gang is dropped; it reports whether do succeeded.
func (g *gang) retry(what string, do func() error) bool {
	pauses := wait.Backoff{Duration: retryFirst, Factor: 2, Jitter: 0.5, Steps: 10, Cap: retryMost}
	tries := 0
	return retry.Do(g.ctx, func(err error) (time.Duration, bool) {
		tries++
		if apierrors.IsNotFound(err) {
			return retryMost, !g.givenUp(what, tries, err)
		}
		return pauses.Step(), !g.givenUp(what, tries, err)
	}, func(context.Context) error { return do() }) == nil
}
