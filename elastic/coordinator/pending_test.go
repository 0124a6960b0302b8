package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/eventually"
)

// until waits for a directive for which is returns true, and carries out none.
func (a *agent) until(what string, is func(*coordinatorv1.Directive) bool) *coordinatorv1.Directive {
	a.t.Helper()
	deadline := time.After(eventually.Timeout)
	for {
		select {
		case d := <-a.orders:
			if is(d) {
				return d
			}
		case err := <-a.ended:
			a.t.Fatalf("the stream ended while %s was awaited: %v", what, err)
		case <-deadline:
			a.t.Fatalf("%s never came", what)
		}
	}
}

// second gives the agent storage.
func (a *agent) second() *agent {
	a.report.Storage = true
	return a
}

func (a *agent) holds(steps ...uint64) {
	for _, k := range a.report.Rank {
		k.Sealed, k.Step = steps, steps[len(steps)-1]
	}
	a.say()
}

func (m *memory) replacedPods() []elastic.Termination {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]elastic.Termination{}, m.replaced...)
}

func TestPendingPodIsDrainedAndReplaced(t *testing.T) {
	h, p, a, key := pair(t)
	for i := range a {
		a[i].second().say()
	}
	start(a, 1)
	for i := range a {
		a[i].holds(1, 2)
	}
	a[0].until("common 2", func(d *coordinatorv1.Directive) bool { return d.CommonStep == 2 })
	termination := []elastic.Termination{
		{Slot: 1, Pod: p[1].Pod.UID, Name: p[1].Pod.Name, Node: "n1", Cause: "XidFatal", Message: "Xid 79", Deadline: time.Now().Add(time.Hour)},
	}
	if err := h.server.SetPendingReplacements(t.Context(), key, termination); err != nil {
		t.Fatal(err)
	}
	hold := uint64(0)
	for i := range a {
		hold = a[i].until("a hold", func(d *coordinatorv1.Directive) bool { return d.BarrierStep > 2 }).BarrierStep
	}
	for i := range a {
		a[i].holds(2, hold)
	}
	d := a[1].until("a copy", func(d *coordinatorv1.Directive) bool { return d.Copy != nil })
	if d.Copy.Step != hold || d.Copy.Generation != 1 {
		t.Errorf("%v is to be copied, held is %d", d.Copy, hold)
	}
	for _, k := range a[1].report.Rank {
		k.Copied = &coordinatorv1.Copied{Mark: d.Copy, Length: 7, Checksum: 9}
	}
	a[1].say()
	for i := range a {
		a[i].await(coordinatorv1.Order_ORDER_HALT, 1)
		a[i].halted(1)
	}
	eventually.Holds(t, "the replacement", func() (bool, any) { got := h.store.replacedPods(); return len(got) == 1, got })
	if got := h.store.replacedPods()[0]; got.Pod != p[1].Pod.UID || got.Cause != "XidFatal" {
		t.Errorf("%+v is replaced", got)
	}
	a[1].report.Rank[0].Sealed = []uint64{100} // a late report of the replaced pod changes nothing
	a[1].say()

	heir := pod("team-a", "train", 1, "a1b")
	heir.Pod.Name, heir.Pod.Node, heir.Pod.Created = "train-1-b", "n2", p[1].Pod.Created.Add(time.Second)
	b := h.dial(h.allow(heir)).second()
	b.say()
	b.await(coordinatorv1.Order_ORDER_HALT, 1)
	b.halted(1)
	fetch := b.until("a fetch", func(d *coordinatorv1.Directive) bool { return d.Fetch != nil })
	if fetch.Fetch.Step != hold || fetch.Fetch.Generation != 1 || fetch.Run.GetBaseRank() != 2 || fetch.Run.GetWorldSize() != 4 {
		t.Errorf("the new pod is told %v", fetch)
	}
	b.holds(hold)
	run := b.await(coordinatorv1.Order_ORDER_RUN, 2)
	if run.Run.RestoreStep != hold || run.Run.RestartCount != 0 {
		t.Errorf("generation 2 is %v, held was %d", run.Run, hold)
	}
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	r := h.store.records[key]
	if len(r.Recoveries) != 1 || len(r.Recoveries[0].Replaced) != 1 || r.Recoveries[0].Replaced[0].By != "train-1-b" ||
		r.Recoveries[0].Replaced[0].NewNode != "n2" ||
		r.Replacements != 1 {
		t.Errorf("the record is %+v", r)
	}
}

func TestPendingReplacementsOnlyWhereThisProcessLeads(t *testing.T) {
	p := pod("team-a", "train", 0, "a0")
	h := open(t, make(chan struct{}))
	h.store.members[p.Key] = 1
	if err := h.server.SetPendingReplacements(t.Context(), p.Key, nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a replica that does not lead answers %v", err)
	}
}

func TestPendingReplacementsLoadAGangThatIsNotKnown(t *testing.T) {
	p := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[p.Key] = 1
	if err := h.server.SetPendingReplacements(t.Context(), p.Key, []elastic.Termination{{
		Slot:  0,
		Pod:   "a0",
		Name:  p.Pod.Name,
		Cause: "NodeUnreachable",
		Dead:  true,
	}}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the replacement of a pod that no agent ever spoke for", func() (bool, any) { got := h.store.replacedPods(); return len(got) == 1, got })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.server.SetPendingReplacements(ctx, Key{Namespace: "team-a", Name: "other", Job: "x"}, nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a gang that does not exist: %v", err)
	}
}

func TestSilentAgentIsNotHeard(t *testing.T) {
	p := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.close()
	h.contactTimeout = 500 * time.Millisecond
	h.serve(leading())
	h.store.members[p.Key] = 1
	if _, ok := h.server.LastContact("a0"); ok {
		t.Error("an agent was heard that never spoke")
	}
	begun, at := time.Now(), time.Time{}
	eventually.Holds(t, "an agent that was heard", func() (heard bool, _ any) { // on a busy machine a report may be late
		a := h.dial(h.allow(p))
		a.say()
		got := a.refused()
		if got != codes.Unavailable {
			t.Errorf("a silent stream ends with %s", got)
		}
		at, heard = h.server.LastContact("a0")
		return heard, got
	})
	if at.Before(begun) {
		t.Errorf("heard at %s, it spoke at %s", at, begun)
	}
}

// Another process has written the record: agents reconnect, and the stored record is read.
func TestSuperseded(t *testing.T) {
	p := pod("team-a", "train", 0, "a0")
	h := open(t, leading())
	h.store.members[p.Key], h.store.superseded = 1, true
	a := h.dial(h.allow(p))
	a.say()
	if got := a.refused(); got != codes.Unavailable {
		t.Errorf("the stream ends with %s", got)
	}
	h.store.mu.Lock()
	h.store.records[p.Key] = elastic.Record{Generation: 6, Phase: elastic.Running}
	h.store.mu.Unlock()
	b := h.dial(h.allow(p))
	b.say()
	if d := b.until("a halt", func(d *coordinatorv1.Directive) bool { return d.Order == coordinatorv1.Order_ORDER_HALT }); d.Generation != 6 {
		t.Errorf("after the record was read anew: %v", d)
	}
}

// TestASilentPodIsLookedUp: while all ranks halt, the coordinator queries the store for the pod of the slot whose agent is silent. Agents
// and the record then get the pod's name.
func TestASilentPodIsLookedUp(t *testing.T) {
	h, p, a, key := pair(t)
	h.store.mu.Lock()
	h.store.holders = map[elastic.Slot]elastic.Pod{1: {UID: p[1].Pod.UID, Name: p[1].Pod.Name, Created: p[1].Pod.Created}}
	h.store.mu.Unlock()
	start(a, 1)
	if err := a[1].rpc.CloseSend(); err != nil {
		t.Fatal(err)
	}
	a[0].fails(0, &coordinatorv1.Exit{Code: 137, Signal: 9, At: time.Now().UnixNano()})
	a[0].await(coordinatorv1.Order_ORDER_HALT, 1)
	a[0].halted(1)
	a[0].until("the name of who is awaited", func(d *coordinatorv1.Directive) bool {
		return d.Order == coordinatorv1.Order_ORDER_HALT && strings.HasPrefix(d.Reason, replacements.AgentUnreachable) &&
			strings.Contains(d.Reason, "pod "+p[1].Pod.Name+" in slot 1")
	})
	eventually.Holds(t, "the same words in the record", func() (bool, any) {
		h.store.mu.Lock()
		defer h.store.mu.Unlock()
		waits := h.store.records[key].Progress.Waits
		return strings.Contains(waits, "pod "+p[1].Pod.Name+" in slot 1"), waits
	})
}

// TestPodsOfAJobThatIsOver: pods of an ended Job are ordered to exit once they report that they terminate, also if the Gang was deleted
// with the Job. Nothing more is written for the Gang.
func TestPodsOfAJobThatIsOver(t *testing.T) {
	h, _, a, key := pair(t)
	start(a, 1)
	h.server.Over(Key{Namespace: "team-a", Name: "train", Job: "a job of which no agent is here"})
	h.store.mu.Lock()
	delete(h.store.members, key)
	delete(h.store.records, key)
	h.store.gone = true
	h.store.mu.Unlock()
	a[0].report.Terminating = true
	a[0].say()
	for range 2 { // twice is once
		h.server.Over(key)
	}
	if d := a[0].await(coordinatorv1.Order_ORDER_EXIT, 1); d.ExitCode != 143 {
		t.Errorf("told %v", d)
	}
	a[1].report.Terminating = true
	a[1].fails(1, &coordinatorv1.Exit{Code: 1, At: time.Now().UnixNano()})
	if d := a[1].await(coordinatorv1.Order_ORDER_EXIT, 1); d.ExitCode != 143 {
		t.Errorf("told %v", d)
	}
	h.store.mu.Lock()
	left := len(h.store.terminating)
	h.store.mu.Unlock()
	if left != 2 {
		t.Errorf("the store heard %d times that a pod was told to end, want once of each", left)
	}
	g, err := h.server.gang(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer h.server.release(g)
	if g.retry("writing for nobody", func() error { return h.store.Persist(t.Context(), key, elastic.Record{}) }) {
		t.Error("what is gone was written")
	}
}

// TestTerminatingIsNotedUntilItIsTaken: if NoteTerminating of the store returns false, it is called again. A restarted container withdraws
// the note.
func TestTerminatingIsNotedUntilItIsTaken(t *testing.T) {
	h, p, a, _ := pair(t)
	start(a, 1)
	left := func() int {
		h.store.mu.Lock()
		defer h.store.mu.Unlock()
		return len(h.store.terminating)
	}
	until := func(want int) {
		t.Helper()
		eventually.Holds(t, fmt.Sprintf("the store knows of %d pods that leave", want), func() (bool, any) { n := left(); return n == want, n })
	}
	h.store.mu.Lock()
	h.store.busy = 1
	h.store.mu.Unlock()
	a[0].report.Terminating = true
	a[0].say()
	a[0].say()
	until(1)
	again := h.dial(h.allow(p[0]))
	again.report.Terminating = false
	again.report.Incarnation++
	again.say()
	until(0)
}
