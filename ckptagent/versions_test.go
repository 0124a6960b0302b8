package ckptagent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// mixed is a gang of one rank per pod and its coordinator, core to core with the arenas' books, in which either side may be of a version that
// knows no branches: what it does not know is taken out of what it says, hears, and has stored.
type mixed struct {
	t        *testing.T
	now      time.Time
	coord    *elastic.State
	record   elastic.Record // as stored
	old      bool           // the coordinator knows no branches
	pods     []*mixedPod
	files    map[protocol.Mark]map[int]format.Point // in storage, by step and generation, and by rank
	restored []format.Point                         // by each start of slot 0
}

type mixedPod struct {
	pod   elastic.Pod
	agent ckptagent.State
	book  *format.Book
	old   bool // its agent knows no branches
	seq   uint64
}

const mixedBytes = 100

func newMixed(t *testing.T, pods int) *mixed {
	m := &mixed{t: t, now: time.Unix(1_700_000_000, 0), files: map[protocol.Mark]map[int]format.Point{}}
	m.coord = elastic.New(pods, time.Second, elastic.Record{})
	for slot := range pods {
		m.pods = append(m.pods, nil)
		m.create(slot, false)
	}
	return m
}

// create has a new pod in a slot.
func (m *mixed) create(slot int, old bool) {
	m.now = m.now.Add(time.Second)
	version := uint32(format.Version)
	if old {
		version = format.Version1
	}
	p := &mixedPod{pod: elastic.Pod{UID: fmt.Sprint(m.now.Unix()), Name: fmt.Sprint("pod-", slot), Created: m.now}, agent: ckptagent.New(), old: old}
	p.book, _ = format.Create(format.Header{Version: version, StateBytes: mixedBytes})
	m.pods[slot] = p
	for _, e := range []ckptagent.Event{ckptagent.Resumed{}, ckptagent.Contact{Up: true}, ckptagent.Launched{ID: "l", Ranks: 1},
		ckptagent.Capabilities{StateBytes: mixedBytes, Storage: true, CheckpointFormat: int(version)}} {
		m.take(slot, e)
	}
}

// numbersAlone is a mark as one says it who knows no branches.
func numbersAlone(m protocol.Mark) protocol.Mark { m.Branch = 0; return m }

// take has the agent of a slot carry out what an event asks for, at once.
func (m *mixed) take(slot int, e ckptagent.Event) {
	p := m.pods[slot]
	agent, effects := ckptagent.Step(p.agent, e, m.now)
	p.agent = agent
	for _, f := range effects {
		switch f := f.(type) {
		case ckptagent.Start:
			if p.book.Begin(f.Run.Number, f.Run.Branch, f.Run.Restores()); f.Run.RestoreStep > 0 && !slices.Contains(p.book.Held(), f.Run.Restores()) {
				m.t.Fatalf("slot %d restores %+v and holds %v", slot, f.Run.Restores(), p.book.Held())
			}
			if slot == 0 {
				m.restored = append(m.restored, f.Run.Restores())
			}
			m.take(slot, ckptagent.Started{Generation: f.Run.Number, PID: 100})
		case ckptagent.End:
			m.take(slot, ckptagent.Gone{})
		case ckptagent.TakeInventory:
			p.book.Abandon(f.Abandoned.Generation, f.Abandoned.Restores())
			m.take(slot, ckptagent.Inventoried{Sealed: [][]protocol.Point{p.book.Held()}})
		case ckptagent.OfferPort:
			m.take(slot, ckptagent.PortOffered{Port: 4000})
		case ckptagent.Levels:
			p.book.Levels(f.CommonStep, f.ReclaimBelow)
			p.book.SetDurable(f.Durable)
		case ckptagent.CopyStep:
			m.copy(slot, f)
		case ckptagent.WriteManifest:
			if f.Manifest.Step > 0 {
				m.take(slot, ckptagent.ManifestWritten{Mark: f.Manifest.Mark})
			}
		case ckptagent.Fetch:
			m.fetch(slot, f)
		}
	}
}

func (m *mixed) copy(slot int, f ckptagent.CopyStep) {
	at, ok := m.pods[slot].book.Find(f.Mark.Step)
	if f.Mark.Step == 0 || !ok {
		return
	}
	s := m.pods[slot].book.Slot[at]
	key := numbersAlone(f.Mark)
	if m.files[key] == nil {
		m.files[key] = map[int]format.Point{}
	}
	m.files[key][f.BaseRank] = format.Point{Branch: s.Branch, Step: s.Step}
	m.take(slot, ckptagent.Copied{Copy: protocol.Copied{Mark: f.Mark, Length: 1, Checksum: 1}})
}

func (m *mixed) fetch(slot int, f ckptagent.Fetch) {
	if f.Mark.Step == 0 {
		return
	}
	p := m.pods[slot]
	if file, ok := m.files[numbersAlone(f.Mark)][f.BaseRank]; ok && !p.book.Holds(f.Mark.Point(), f.Mark.Generation) {
		hole, _, ok := p.book.BeginFill(file, f.Mark.Generation, 1)
		if ok {
			p.book.CommitFill(hole, 1, 1)
		}
	}
	m.take(slot, ckptagent.Fetched{Mark: f.Mark, Sealed: [][]protocol.Point{p.book.Held()}})
}

// report is what the agent of a slot says, as the coordinator hears it.
func (m *mixed) report(slot int) {
	p := m.pods[slot]
	r := p.agent.Report()
	p.seq++
	r.Protocol, r.Sequence, r.Address = protocol.Version, p.seq, "10.0.0.1"
	if m.old || p.old {
		r.CheckpointFormat, r.Manifested, r.FetchFailed = 0, numbersAlone(r.Manifested), numbersAlone(r.FetchFailed)
		for i := range r.Rank {
			r.Rank[i].Sealed = protocoltest.FirstBranch(protocol.Steps(r.Rank[i].Sealed)...)
			r.Rank[i].Copied.Mark = numbersAlone(r.Rank[i].Copied.Mark)
		}
	}
	m.decide(elastic.Reported{Slot: elastic.Slot(slot), Pod: p.pod, Report: r})
}

// direct is what the coordinator says to the agent of a slot, as that hears it.
func (m *mixed) direct(slot int) {
	d := m.coord.Directive(elastic.Slot(slot), m.pods[slot].pod.UID)
	if m.old || m.pods[slot].old {
		d.Run.Branch, d.Run.RestoreBranch, d.DurableBranch, d.CheckpointFormat = 0, 0, 0, 0
		d.Copy, d.Fetch, d.Manifest.Mark = numbersAlone(d.Copy), numbersAlone(d.Fetch), numbersAlone(d.Manifest.Mark)
	}
	if m.pods[slot].old {
		d.CheckpointFormat = protocol.CheckpointFormat // it compares none, and so do we in its place
	}
	m.take(slot, ckptagent.Directed{Directive: d})
}

func (m *mixed) decide(e elastic.Event) (refused string) {
	for _, f := range elastic.Step(m.coord, e, m.now) {
		switch f := f.(type) {
		case elastic.Persist:
			if m.record = f.Record; m.old {
				m.record = withoutBranches(m.record)
			}
			m.decide(elastic.Stored{Revision: f.Revision, Generation: f.Record.Generation})
		case elastic.GoBackRefused:
			refused = f.Why
		case elastic.End:
			m.t.Fatalf("the job is given up: %+v", f.Verdict)
		}
	}
	return refused
}

// withoutBranches is a record as a version that knows none writes it.
func withoutBranches(r elastic.Record) elastic.Record {
	r.Branch, r.RestoreBranch, r.Branches, r.Copies = 0, 0, nil, slices.Clone(r.Copies)
	for _, d := range []**elastic.StoredStep{&r.Durable, &r.Older} {
		if *d != nil {
			*d = &elastic.StoredStep{Mark: numbersAlone((*d).Mark), At: (*d).At}
		}
	}
	for i := range r.Copies {
		r.Copies[i].Mark = numbersAlone(r.Copies[i].Mark)
	}
	return r
}

// lead has another coordinator lead, of a version that knows no branches or of today's.
func (m *mixed) lead(old bool) {
	if m.old = old; old {
		m.record = withoutBranches(m.record)
	}
	m.coord = elastic.New(len(m.pods), time.Second, m.record)
}

// turn lets all say and do what they can.
func (m *mixed) turn() {
	m.now = m.now.Add(100 * time.Millisecond)
	m.decide(elastic.Tick{})
	for slot := range m.pods {
		m.report(slot)
		m.direct(slot)
	}
}

// until goes on until all ranks run the newest generation, and that is above the given one.
func (m *mixed) until(above int64) {
	m.t.Helper()
	for range 200 {
		r := m.coord.Snapshot()
		if r.Generation > above && r.Phase == elastic.Running && !slices.ContainsFunc(m.pods, func(p *mixedPod) bool {
			return p.agent.Phase != protocol.StateRunning || p.agent.Generation != r.Generation
		}) {
			return
		}
		m.turn()
	}
	m.t.Fatalf("no generation above %d: %+v, waits %q", above, m.coord.Snapshot(), m.coord.Directive(0, m.pods[0].pod.UID).Reason)
}

// train has every rank finish steps up to one, and save each.
func (m *mixed) train(to int64) {
	m.t.Helper()
	for step := m.pods[0].agent.Rank[0].Step + 1; step <= to; step++ {
		for slot, p := range m.pods {
			c := p.book.Control
			if c.Slot != format.NoSlot {
				p.book.Seal(format.Copy{Slot: c.Slot, Grant: c.Grant, Step: step, Length: 1}, 1, 1)
			}
			m.take(slot, ckptagent.Progress{Generation: p.agent.Run.Number, Attached: true, Restored: true, Step: step})
			m.take(slot, ckptagent.Sealed{Generation: p.agent.Run.Number, Steps: p.book.Held()})
		}
		m.turn()
	}
}

// durable goes on until a step at or above one is recorded.
func (m *mixed) durable(step int64) protocol.Mark {
	m.t.Helper()
	for range 100 {
		if d := m.record.Durable; d != nil && d.Step >= step {
			return d.Mark
		}
		m.turn()
	}
	m.t.Fatalf("step %d is not durable: %+v", step, m.record)
	return protocol.Mark{}
}

// fail has the rank of a slot die, and all go on in another generation; it returns what slot 0 restored.
func (m *mixed) fail(slot int) format.Point {
	m.t.Helper()
	g := m.coord.Snapshot().Generation
	m.take(slot, ckptagent.Exited{Generation: g, Exit: protocol.Exit{Code: 137, Signal: 9, At: m.now}})
	m.until(g)
	return m.restored[len(m.restored)-1]
}

// lose has the pod of a slot replaced by another one, whose memory is empty.
func (m *mixed) lose(slot int, old bool) format.Point {
	m.t.Helper()
	g := m.coord.Snapshot().Generation
	m.create(slot, old)
	m.until(g)
	return m.restored[len(m.restored)-1]
}

func (m *mixed) want(what string, got, want format.Point) {
	m.t.Helper()
	if got != want {
		m.t.Fatalf("%s restores %+v, want %+v", what, got, want)
	}
}

// TestOldControllerOverBranches: a controller is rolled back to a version that knows no branches, and later forward again, while a gang is of branch
// 1. Every step on its line has another number, so that all go on from the newest one, from memory and from storage.
func TestOldControllerOverBranches(t *testing.T) {
	m := newMixed(t, 2)
	m.until(0)
	m.train(5)
	to := m.durable(1)
	m.train(9)
	if why := m.decide(elastic.GoBack{To: to.Point()}); why != "" {
		t.Fatal(why)
	}
	m.until(1)
	m.want("going back", m.restored[1], to.Point())
	m.train(to.Step + 4)

	m.lead(true)
	m.turn()
	newest := format.Point{Branch: 1, Step: to.Step + 4}
	m.want("a failure under the old controller", m.fail(0), newest)
	m.train(newest.Step + 2)
	m.durable(newest.Step)
	m.train(newest.Step + 4)
	newest = m.lose(1, false)
	if d := m.record.Durable; newest.Branch != 1 || newest.Step < d.Step {
		t.Fatalf("a new pod under the old controller: all restore %+v, durable is %+v", newest, d)
	}
	m.train(newest.Step + 3)

	m.lead(false)
	m.turn()
	newest.Step += 3
	m.want("a failure under the new controller", m.fail(1), newest)
	if r := m.coord.Snapshot(); r.Branch != 1 {
		t.Fatalf("it knows branch %d", r.Branch)
	}
	m.train(newest.Step + 2)
	back := m.durable(newest.Step + 1).Point()
	if why := m.decide(elastic.GoBack{To: back}); why != "" {
		t.Fatal(why)
	}
	m.until(m.coord.Snapshot().Generation)
	if r := m.coord.Snapshot(); r.Branch != 2 || r.Branches.Has(format.Point{Branch: 1, Step: back.Step + 1}) {
		t.Fatalf("the next branch is %d: %v", r.Branch, r.Branches)
	}
}

// TestOldPodsUnderANewController: pods whose agents or arenas know no branches are served as ever, and nobody goes back while one is there.
func TestOldPodsUnderANewController(t *testing.T) {
	m := newMixed(t, 2)
	m.create(1, true)
	m.until(0)
	m.train(5)
	to := m.durable(1).Point()
	m.want("a failure", m.fail(1), format.Point{Step: 5})
	if why := m.decide(elastic.GoBack{To: to}); why == "" || m.coord.Snapshot().Branches != nil {
		t.Fatalf("went back with an agent that knows no branches: %q", why)
	}
	m.train(7)
	m.durable(6)
	if got := m.lose(1, false); got.Step < 6 {
		t.Fatalf("a pod of this version joins, and all restore %+v", got)
	}
	if why := m.decide(elastic.GoBack{To: m.record.Durable.Point()}); why != "" {
		t.Fatal(why)
	}
	m.until(m.coord.Snapshot().Generation)
	if run := m.pods[1].agent.Run; run.Branch != 1 {
		t.Fatalf("runs %+v", run)
	}
}
