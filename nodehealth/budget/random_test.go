package budget

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/seeds"
	"holdfast.dev/holdfast/nodehealth"
)

// history is the random history of a cluster. The plan is carried out after each event.
type history struct {
	t      *testing.T
	r      *rand.Rand
	config Config
	view   View
	now    time.Time
	// idle are nodes that have had no pod of a gang since they were given up.
	idle map[string]bool
	log  []string
}

// TestRandomHistories plays random events. After each plan it checks the rules below.
func TestRandomHistories(t *testing.T) {
	for seed := range seeds.All(t, int64(400)) {
		r := rand.New(rand.NewSource(seed))
		h := &history{t: t, r: r, config: Defaults(), now: time.Unix(1_700_000_000, 0), idle: map[string]bool{}}
		h.config.MaxOut = Limit{Count: r.Intn(4)}
		h.config.MaxOutPerDomain = Limit{Count: 1 + r.Intn(2)}
		if r.Intn(3) == 0 {
			h.config.MaxOutPerDomain = Limit{Percent: 1 + r.Intn(60)}
		}
		h.config.MaxSuspected, h.config.MaxSuspectedPerNamespace = Limit{Count: r.Intn(4)}, Limit{Count: 1 + r.Intn(2)}
		h.view.Led = h.now
		for i := range 1 + r.Intn(14) {
			n := Node{
				Name:          fmt.Sprintf("n%02d", i),
				Domain:        []string{"", "a", "b"}[r.Intn(3)],
				GPUs:          r.Intn(2) * 8,
				GangPods:      r.Intn(3),
				Lease:         r.Intn(8) > 0,
				LeaseRenewed:  h.now,
				LeaseDuration: []time.Duration{0, 10, 40, 60, 120, 300, 1e6}[r.Intn(7)] * time.Second,
			}
			n.Agents = r.Intn(n.GangPods + 1)
			h.view.Nodes = append(h.view.Nodes, n)
		}
		for range 120 {
			h.event()
			h.plan()
			if t.Failed() {
				t.Fatalf("seed %d, events: %v", seed, h.log)
			}
		}
		h.healsCompletely()
		if t.Failed() {
			t.Fatalf("seed %d, events: %v", seed, h.log)
		}
	}
}

func (h *history) event() {
	n := &h.view.Nodes[h.r.Intn(len(h.view.Nodes))]
	switch h.r.Intn(12) {
	case 0, 1:
		actions := []nodehealth.Action{nodehealth.None, nodehealth.Watch, nodehealth.Exclude, nodehealth.Evict, nodehealth.Evict}
		n.Verdict = Verdict{Action: actions[h.r.Intn(len(actions))], Cause: []string{"X", "Y"}[h.r.Intn(2)], Since: h.now}
		h.say("%s says %s", n.Name, n.Verdict.Action)
	case 2, 3, 4:
		h.now = h.now.Add(time.Duration(h.r.Intn(9000)) * time.Millisecond)
		h.say("later")
	case 5, 6:
		for i := range h.view.Nodes {
			if m := &h.view.Nodes[i]; h.r.Intn(3) > 0 {
				m.LeaseRenewed = h.now
			}
		}
		h.say("leases")
	case 7:
		n.AgentContact = h.now
		h.say("agent of %s", n.Name)
	case 8:
		n.GangPods = h.r.Intn(3)
		n.Agents = h.r.Intn(n.GangPods + 1)
		h.say("%s has %d pods", n.Name, n.GangPods)
	case 9:
		h.view.Led, h.view.PartitionSuspected, h.view.Broken = h.now, time.Time{}, time.Time{}
		for i := range h.view.Nodes {
			h.view.Nodes[i].LeaseRenewed, h.view.Nodes[i].AgentContact = time.Time{}, time.Time{}
		}
		h.say("new leader")
	case 10:
		if n.Request = (Request{}); h.r.Intn(3) > 0 {
			n.Request = Request{At: h.now, Until: h.now.Add(time.Duration(h.r.Intn(60)) * time.Second), Message: "by ada: a test",
				Now: h.r.Intn(3) == 0, Pod: []string{"", "pod-a", "pod-b"}[h.r.Intn(3)]}
		}
		h.say("request %+v for %s", n.Request, n.Name)
	case 11:
		n.Suspicions = append(n.Suspicions, Suspicion{Namespace: []string{"red", "blue"}[h.r.Intn(2)], Gang: "g", At: h.now,
			Until: h.now.Add(time.Duration(h.r.Intn(90)) * time.Second), Proven: h.r.Intn(2) == 0})
		h.say("suspicions %+v of %s", n.Suspicions, n.Name)
	}
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) plan() {
	before := slices.Clone(h.view.Nodes)
	p := Decide(h.config, h.view, h.now)
	h.check(p, before)
	if p.PartitionSuspected {
		h.view.PartitionSuspected = h.now
	}
	if p.Broken || p.Back {
		h.view.Broken = h.now
	}
	for i := range h.view.Nodes {
		h.view.Nodes[i].Stands = p.Decisions[i].Outage
	}
	for _, d := range Decide(h.config, h.view, h.now).Decisions {
		if d.Changed {
			h.t.Errorf("carried out, the plan changes again: %+v", d)
		}
	}
}

// check checks the rules that every plan must keep, in random histories and in scripts.
func (h *history) check(p Plan, before []Node) {
	h.t.Helper()
	h.remember(p, before)
	h.sameWhateverTheOrder(p)
	h.neverBeyondBudget(p, before)
	h.outIsWhatWasSpent(p)
	h.nothingTakenBackForABudget(p, before)
	h.neverWithoutReason(p, before)
	h.wordsAreBounded(p, before)
	h.neverOtherPodsWhileBroken(p, before)
	h.deathNeedsSilence(p, before)
}

// remember records, independent of the plan, on which nodes no gang was affected.
func (h *history) remember(p Plan, before []Node) {
	for i, d := range p.Decisions {
		fresh := before[i].Stands.Outcome != Evict
		h.idle[d.Node] = d.Outcome == Evict && before[i].GangPods == 0 && (fresh || h.idle[d.Node])
		if d.Idle != h.idle[d.Node] {
			h.t.Errorf("%s: idle is %v, want %v", d.Node, d.Idle, h.idle[d.Node])
		}
	}
}

// outIsWhatWasSpent checks that the plan counts as out exactly the nodes that were given up with gangs on them.
func (h *history) outIsWhatWasSpent(p Plan) {
	out := 0
	for _, d := range p.Decisions {
		if d.Outcome == Evict && !h.idle[d.Node] {
			out++
		}
	}
	if p.Cluster.Out != out {
		h.t.Errorf("out is %d, want %d", p.Cluster.Out, out)
	}
}

func (h *history) sameWhateverTheOrder(p Plan) {
	other := h.view
	other.Nodes = slices.Clone(other.Nodes)
	h.r.Shuffle(len(other.Nodes), func(i, j int) { other.Nodes[i], other.Nodes[j] = other.Nodes[j], other.Nodes[i] })
	if got := Decide(h.config, other, h.now); !reflect.DeepEqual(got, p) {
		h.t.Errorf("the order of the nodes matters:\n%+v\n%+v", got, p)
	}
}

// neverBeyondBudget checks that a node with gangs is newly given up only while, with this node, the nodes that are out are within both
// budgets and the breaker is closed. Out are the nodes that were given up with pods of gangs on them.
func (h *history) neverBeyondBudget(p Plan, before []Node) {
	out, of, outOf, size, fresh := 0, 0, map[string]int{}, map[string]int{}, []Node{}
	for i, d := range p.Decisions {
		byRequest := d.Cause == CauseByHand && (d.Outcome == Hold || h.idle[d.Node]) || d.Cause == CauseSuspected
		if n := before[i]; n.GPUs > 0 || n.GangPods > 0 || n.Verdict.Action != nodehealth.None || d.Outcome != None && !byRequest {
			size[n.Domain]++
			of++
		}
		forced := before[i].Stands.Outcome != Evict && before[i].Request.holds(h.now) && before[i].Request.Now
		if d.Outcome != Evict || forced {
			continue
		}
		if !h.idle[d.Node] {
			out++
			outOf[before[i].Domain]++
		}
		if before[i].Stands.Outcome != Evict {
			if p.Broken {
				h.t.Errorf("%s is given up while the breaker holds", d.Node)
			}
			if before[i].GangPods > 0 {
				fresh = append(fresh, before[i])
			}
		}
	}
	if p.Of != of {
		h.t.Errorf("%d nodes are counted, want %d", p.Of, of)
	}
	for _, n := range fresh {
		if out > h.config.MaxOut.Of(p.Of) {
			h.t.Errorf("%s is given up, %d nodes are out", n.Name, out)
		}
		if n.Domain != "" && outOf[n.Domain] > h.config.MaxOutPerDomain.Of(size[n.Domain]) {
			h.t.Errorf("%s is given up, %d nodes of %s are out", n.Name, outOf[n.Domain], n.Domain)
		}
	}
}

// nothingTakenBackForABudget checks that a given-up node stays given up until its verdict improves or its lease is renewed.
func (h *history) nothingTakenBackForABudget(p Plan, before []Node) {
	for i, d := range p.Decisions {
		n := before[i]
		bad := n.Verdict.Action == nodehealth.Evict || n.Request.holds(h.now) || n.Stands.Dead && !n.LeaseRenewed.After(n.Stands.Since)
		if n.Stands.Outcome == Evict && bad && d.Outcome != Evict {
			h.t.Errorf("%s was given up and is %q though nothing got better", d.Node, d.Outcome)
		}
	}
}

// neverWithoutReason checks that each decision is required by its node's verdict or silence, that a hold has a reason, and that a changed
// decision differs in cause, reason or Dead.
func (h *history) neverWithoutReason(p Plan, before []Node) {
	for i, d := range p.Decisions {
		n := before[i]
		asked := n.Verdict.Action == nodehealth.Evict || n.Verdict.Action == nodehealth.Exclude || d.Cause == CauseUnreachable ||
			n.Request.holds(h.now) && d.Cause == CauseByHand && (d.Outcome == Hold || d.Pod == n.Request.Pod || p.Broken && d.Pod == n.Stands.Pod) ||
			d.Outcome == Exclude && slices.ContainsFunc(n.Suspicions, func(s Suspicion) bool { return h.now.Before(s.Until) }) ||
			provenBy(n, "red") && provenBy(n, "blue")
		if d.Outcome != None && (!asked || d.Cause == "" || d.Since.IsZero()) {
			h.t.Errorf("%s: %+v without a reason", d.Node, d.Outage)
		}
		if d.Requested != n.Request.holds(h.now) {
			h.t.Errorf("%s: requested is %v", d.Node, d.Requested)
		}
		if (d.Outcome == Hold) != (d.Reason != "") {
			h.t.Errorf("%s: %s because of %q", d.Node, d.Outcome, d.Reason)
		}
		s := n.Stands
		same := s.Outcome == d.Outcome && s.Cause == d.Cause && s.Reason == d.Reason && s.Dead == d.Dead && s.Idle == d.Idle && s.Pod == d.Pod &&
			s.Requested == d.Requested
		if d.Changed == same {
			h.t.Errorf("%s: changed is %v from %+v to %+v", d.Node, d.Changed, s, d.Outage)
		}
	}
}

func provenBy(n Node, namespace string) bool {
	return slices.ContainsFunc(n.Suspicions, func(s Suspicion) bool { return s.Proven && s.Namespace == namespace })
}

// wordsAreBounded checks that no more nodes are out by the word of gangs alone than the limits allow, and that words free no node that its
// verdict excludes.
func (h *history) wordsAreBounded(p Plan, before []Node) {
	words, red := 0, 0
	for i, d := range p.Decisions {
		n := before[i]
		switch {
		case d.Cause == CauseSuspected:
			words++
			holds := func(s Suspicion) bool { return s.Namespace == "blue" && h.now.Before(s.Until) }
			if d.Outcome == Exclude && !slices.ContainsFunc(n.Suspicions, holds) {
				red++
			}
		case d.Outcome == None && n.Verdict.Action == nodehealth.Exclude:
			h.t.Errorf("%s is free against its verdict", d.Node)
		}
	}
	if most := h.config.MaxSuspected.Of(p.Of); words > most {
		h.t.Errorf("%d nodes are out by words, more than %d", words, most)
	}
	if most := h.config.MaxSuspectedPerNamespace.Of(p.Of); red > most {
		h.t.Errorf("%d nodes are excluded by the word of one namespace, more than %d", red, most)
	}
}

// neverOtherPodsWhileBroken checks that a node which was given up for one pod loses no other pod while the breaker holds, unless a request
// is for that one now.
func (h *history) neverOtherPodsWhileBroken(p Plan, before []Node) {
	for i, d := range p.Decisions {
		n := before[i]
		loses := d.Outcome == Evict && d.Pod != n.Stands.Pod && !(n.Stands.Outcome == Evict && n.Stands.Pod == "")
		if p.Broken && loses && !(n.Request.holds(h.now) && n.Request.Now && d.Pod == n.Request.Pod) {
			h.t.Errorf("%s: the breaker holds, and other pods are replaced: from %+v to %+v", d.Node, n.Stands, d.Outage)
		}
	}
}

// deathNeedsSilence checks that a node newly counts as dead only after it was silent for long enough while most other nodes were not.
func (h *history) deathNeedsSilence(p Plan, before []Node) {
	for i, d := range p.Decisions {
		n := before[i]
		if !d.Dead || n.Stands.Dead {
			continue
		}
		since := func(t time.Time) time.Duration { return h.now.Sub(latest(t, h.view.Led)) }
		holds := min(n.LeaseDuration, 10*time.Minute)
		long := since(n.LeaseRenewed) >= h.config.LeaseAloneTimeout && since(n.LeaseRenewed) >= holds
		if n.Agents > 0 {
			long = since(n.LeaseRenewed) >= h.config.LeaseTimeout && since(n.AgentContact) >= h.config.AgentTimeout &&
				10*since(n.LeaseRenewed) >= 3*holds && 8*since(n.AgentContact) >= holds
		}
		if !long || p.PartitionSuspected || !n.Lease {
			h.t.Errorf("%s is called dead: lease %s, agents %d %s, partition suspected %v", d.Node, since(n.LeaseRenewed), n.Agents, since(n.AgentContact), p.PartitionSuspected)
		}
	}
}

// TestLeasesAtRest: for any lease duration no node is excluded while its lease is renewed every quarter of that duration, with the
// kubelet's jitter and two seconds of delay. The time after which a silent node is given up is in proportion to the duration.
func TestLeasesAtRest(t *testing.T) {
	for seed := range seeds.All(t, int64(25)) {
		r := rand.New(rand.NewSource(seed))
		now := time.Unix(1_700_000_000, 0)
		v := View{Led: now}
		next := make([]time.Time, 1+r.Intn(12))
		holds := time.Duration(10+r.Intn(590)) * time.Second
		for i := range next {
			n := Node{
				Name:          fmt.Sprintf("n%02d", i),
				GPUs:          8,
				GangPods:      1,
				Agents:        r.Intn(2),
				Lease:         true,
				LeaseRenewed:  now,
				AgentContact:  now,
				LeaseDuration: holds,
			}
			v.Nodes = append(v.Nodes, n)
		}
		for range 700 {
			now = now.Add(time.Second)
			for i := range next {
				n := &v.Nodes[i]
				if n.AgentContact = now; !now.Before(next[i]) {
					n.LeaseRenewed = now
					rests := max(10*time.Second, holds/4)
					next[i] = now.Add(rests + time.Duration(r.Int63n(int64(rests/25))))
				}
			}
			if p := Decide(Defaults(), v, now); p.PartitionSuspected ||
				slices.ContainsFunc(p.Decisions, func(d Decision) bool { return d.Outcome != None }) {
				t.Fatalf("seed %d: leases of %s at rest: %+v", seed, holds, p)
			}
		}
		if len(next) < 2 {
			continue
		}
		last := v.Nodes[0].LeaseRenewed
		limit := max(40*time.Second, holds)
		for now.Sub(last) <= limit {
			now = now.Add(time.Second)
			for i := range v.Nodes[1:] {
				v.Nodes[1+i].LeaseRenewed, v.Nodes[1+i].AgentContact = now, now
			}
		}
		if d := Decide(Defaults(), v, now).Decisions[0]; !d.Dead {
			t.Errorf("seed %d: silent for %s with a lease of %s: %+v", seed, now.Sub(last), holds, d)
		}
	}
}

// healsCompletely checks that after any history no decision remains once every daemon reports healthy and every lease is renewed.
func (h *history) healsCompletely() {
	h.now = h.now.Add(time.Second)
	for i := range h.view.Nodes {
		n := &h.view.Nodes[i]
		n.Verdict, n.Lease, n.LeaseRenewed, n.AgentContact = Verdict{Action: nodehealth.None}, true, h.now, h.now
		n.Request, n.Suspicions = Request{}, nil
	}
	for _, d := range Decide(h.config, h.view, h.now).Decisions {
		if d.Outcome != None {
			h.t.Errorf("%s is well and still %s", d.Node, d.Outcome)
		}
	}
}

func TestLimit(t *testing.T) {
	for text, want := range map[string][3]int{"0": {0, 0, 0}, "3": {3, 3, 3}, "5%": {1, 1, 5}, "100%": {1, 19, 100}} {
		l, err := ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]int{l.Of(1), l.Of(19), l.Of(100)}; got != want || l.String() != text {
			t.Errorf("%s: %v of 1, 19 and 100, want %v; prints %s", text, got, want, l)
		}
	}
	for _, text := range []string{"", "-1", "0%", "101%", "x", "1.5", "+3", "%"} {
		if l, err := ParseLimit(text); err == nil {
			t.Errorf("%q was read as %v", text, l)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"breaker":     func(c *Config) { c.BreakerPercent = 0 },
		"lease":       func(c *Config) { c.LeaseTimeout = 10 * time.Second },
		"agent":       func(c *Config) { c.AgentTimeout = time.Second },
		"alone":       func(c *Config) { c.LeaseAloneTimeout = 11 * time.Second },
		"late":        func(c *Config) { c.LeaseLate = time.Second },
		"partition":   func(c *Config) { c.PartitionPercent = 0 },
		"breakerless": func(c *Config) { c.BreakerPercent = 101 },
		"all cut off": func(c *Config) { c.PartitionPercent = 101 },
		"no node":     func(c *Config) { c.BreakerNodes = 0 },
	} {
		c := Defaults()
		spoil(&c)
		if c.Validate() == nil {
			t.Errorf("%s: %+v is taken", name, c)
		}
	}
}

// TestTheLeastThatIsTaken: the value that an error message recommends is accepted.
func TestTheLeastThatIsTaken(t *testing.T) {
	for name, c := range map[string]Config{
		"least": {BreakerPercent: 1, BreakerNodes: 1, PartitionPercent: 1, LeaseTimeout: 11 * time.Second, LeaseAloneTimeout: 11 * time.Second,
			LeaseLate: 11 * time.Second, AgentTimeout: 3 * time.Second},
		"most": {BreakerPercent: 100, BreakerNodes: 1, PartitionPercent: 100, LeaseTimeout: time.Hour, LeaseAloneTimeout: time.Hour, LeaseLate: time.Hour,
			AgentTimeout: time.Hour},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l, err := ParseLimit("1%"); err != nil || l.Percent != 1 {
		t.Errorf("1%%: %v, %v", l, err)
	}
}

// BenchmarkDecide has five thousand nodes, a hundred of them sick.
func BenchmarkDecide(b *testing.B) {
	now := time.Unix(1_700_000_000, 0)
	v := View{Led: now}
	for i := range 5000 {
		v.Nodes = append(
			v.Nodes,
			Node{
				Name:         fmt.Sprintf("n%04d", i),
				Domain:       fmt.Sprintf("r%d", i/18),
				GPUs:         8,
				GangPods:     1,
				Agents:       1,
				Lease:        true,
				LeaseRenewed: now,
				AgentContact: now,
			},
		)
	}
	for i := range 100 {
		v.Nodes[i*37].Verdict = Verdict{Action: nodehealth.Evict, Cause: "X", Since: now}
	}
	for b.Loop() {
		Decide(Defaults(), v, now)
	}
}
