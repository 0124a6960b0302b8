package budget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// contact is the state of contact to a node.
type contact int

const (
	inContact contact = iota
	// late: the lease is not renewed, but that is not enough to call the node dead.
	late
	dead
)

// judged is a node with Decide's intermediate results.
type judged struct {
	Node
	contact contact
	// want is None, Exclude or Evict, before any budget.
	want Outcome
	// sick: the node's verdict or its silence wants Evict, whatever users request.
	sick bool
	// red is since when; candidates for a budget come in this order.
	red time.Time
	// word is the suspicion that the node's exclusion or eviction follows; nil: none.
	word *Suspicion
}

// ours reports whether the node is judged and counted: it has GPUs, gangs, a verdict, or an outage that stands until the node is well.
func (j *judged) ours() bool {
	return j.GPUs > 0 || j.GangPods > 0 || j.Verdict.Action != nodehealth.None || j.want != None && !j.idleByRequest()
}

// idleByRequest reports whether a request alone wants a node to be evicted that has had no pod of a gang since: else requests for other
// nodes would raise the number of sick ones from which on the breaker holds.
func (j *judged) idleByRequest() bool {
	return j.requested() && !j.sick && !j.Stands.spent()
}

// Decide decides about all nodes at once.
func Decide(c Config, v View, now time.Time) Plan {
	p := Plan{PartitionSuspected: partitionSuspected(c, v, now), Domains: map[string]Use{}}
	nodes := make([]judged, 0, len(v.Nodes))
	for _, n := range v.Nodes {
		j := judged{Node: n}
		j.judge(c, v, p.PartitionSuspected, now)
		p.Back = p.Back || n.Stands.Dead && j.contact != dead
		nodes = append(nodes, j)
	}
	slices.SortFunc(nodes, func(a, b judged) int { return cmp.Compare(a.Name, b.Name) })
	sizes := count(&p, nodes)
	suspect(c, p.Of, nodes, now)
	p.Cluster.Max = c.MaxOut.Of(p.Of)
	p.Broken = p.Of >= c.BreakerNodes && p.Red*100 >= c.BreakerPercent*p.Of
	s := &spender{config: c, view: v, plan: &p, sizes: sizes, now: now}
	answers := s.spend(nodes)
	for i := range nodes {
		p.Decisions = append(p.Decisions, settle(&nodes[i], answers[nodes[i].Name], v, now))
	}
	return p
}

// partitionSuspected reports whether so many leases are not renewed that the nodes are probably not at fault.
func partitionSuspected(c Config, v View, now time.Time) bool {
	all, silent := 0, 0
	for _, n := range v.Nodes {
		if n.Lease {
			all++
			if now.Sub(latest(n.LeaseRenewed, v.Led)) >= c.forLease(n.LeaseDuration).LeaseTimeout {
				silent++
			}
		}
	}
	return all > 0 && silent*100 >= c.PartitionPercent*all
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}

// judge sets what the node's contact and its verdict require.
func (j *judged) judge(c Config, v View, partitioned bool, now time.Time) {
	if !j.Request.holds(now) {
		j.Request = Request{}
	}
	if j.ours() || j.Stands.Outcome != None && (j.Stands.Cause != CauseByHand || j.Stands.spent()) {
		j.contact = j.judgeContact(c, v, partitioned, now)
	}
	switch {
	case j.Verdict.Action == nodehealth.Evict:
		j.want, j.sick, j.red = Evict, true, j.Verdict.Since
	case j.contact == dead:
		j.want, j.sick, j.red = Evict, true, latest(j.LeaseRenewed, v.Led)
	case j.requested():
		j.want, j.red = Evict, j.Request.At
	case j.Verdict.Action == nodehealth.Exclude || j.contact == late:
		j.want = Exclude
	}
}

// requested reports whether a user's request is in force.
func (j *judged) requested() bool { return !j.Request.At.IsZero() }

// whole reports whether the node itself is at fault, so that a request for one pod is not the reason to give it up.
func (j *judged) whole() bool { return j.sick || j.word != nil }

func (j *judged) judgeContact(c Config, v View, partitioned bool, now time.Time) contact {
	// A decision about a silent node is withdrawn only when its lease is renewed: a caller that has just started, or suspected a partition,
	// has received nothing yet.
	since := j.Stands.Since
	if since.After(now) { // an earlier leader's clock was ahead; contacts count since this process leads
		since = v.Led
	}
	if !j.LeaseRenewed.After(since) {
		switch {
		case j.Stands.Dead:
			return dead
		case j.Stands.Cause == CauseUnreachable && (partitioned || !j.Lease || !j.unreachable(c, v, now)):
			return late
		}
	}
	lease := now.Sub(latest(j.LeaseRenewed, v.Led, v.PartitionSuspected))
	switch {
	case !j.Lease || partitioned:
		return inContact
	case j.unreachable(c, v, now):
		return dead
	case j.Agents > 0 && lease >= c.forLease(j.LeaseDuration).LeaseLate:
		return late
	}
	return inContact
}

// unreachable reports whether lease and agents together make the node dead.
func (j *judged) unreachable(c Config, v View, now time.Time) bool {
	c = c.forLease(j.LeaseDuration)
	lease := now.Sub(latest(j.LeaseRenewed, v.Led, v.PartitionSuspected))
	if j.Agents == 0 {
		return lease >= c.LeaseAloneTimeout
	}
	return lease >= c.LeaseTimeout && now.Sub(latest(j.AgentContact, v.Led, v.PartitionSuspected)) >= c.AgentTimeout
}

// count counts the nodes that are ours and red, and those that are out; it returns the domains' sizes.
func count(p *Plan, nodes []judged) map[string]int {
	sizes := map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		if !n.ours() {
			continue
		}
		p.Of++
		sizes[n.Domain]++
		if n.sick {
			p.Red++
		}
	}
	return sizes
}

// answer is Evict, or Hold with its reason.
type answer struct {
	outcome Outcome
	reason  Reason
	text    string
	// idle and pod: see Outage.
	idle bool
	pod  string
}

// spender grants the rest of the budgets.
type spender struct {
	config Config
	view   View
	plan   *Plan
	sizes  map[string]int
	now    time.Time
}

// spend answers for every node that should be evicted. It withdraws no decision for a budget's sake.
func (s *spender) spend(nodes []judged) map[string]answer {
	answers := map[string]answer{}
	var wait []*judged
	for i := range nodes {
		n := &nodes[i]
		switch {
		case n.want != Evict:
		case n.Stands.Outcome == Evict:
			answers[n.Name] = s.giveUp(n)
		default:
			wait = append(wait, n)
		}
	}
	slices.SortStableFunc(wait, func(a, b *judged) int {
		return cmp.Or(
			-cmp.Compare(a.contact, b.contact), // a dead node's gangs are stopped
			a.red.Compare(b.red), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range wait {
		if n.Request.Now || s.room(n) {
			answers[n.Name] = s.giveUp(n)
		}
	}
	for _, n := range wait { // the reason, once it is known which nodes are out
		if _, ok := answers[n.Name]; !ok {
			answers[n.Name] = s.hold(n)
		}
	}
	return answers
}

// giveUp charges the budgets for a node, unless it has no pod of a gang. The charge stays after the node's pods have left it.
func (s *spender) giveUp(n *judged) answer {
	a := answer{outcome: Evict, idle: n.GangPods == 0 && !n.Stands.spent()}
	a.pod, a.text = s.scope(n)
	if !a.idle {
		s.take(n)
	}
	return a
}

// scope returns the only pod that is replaced, empty for all, and with a text why the others are held. A request is for its pod; a sick
// node loses all. To replace other pods than before is a new decision, which the breaker holds as any other, unless a request is for now.
func (s *spender) scope(n *judged) (pod, held string) {
	pod = n.Request.Pod
	if n.whole() {
		pod = ""
	}
	given := n.Stands.Outcome == Evict
	switch {
	case given && (n.Stands.Pod == "" || n.Stands.Pod == pod) || !s.plan.Broken && !s.unsure(n):
		return pod, ""
	case n.Request.Now && (!n.whole() || n.Request.Pod == ""):
		return n.Request.Pod, ""
	case n.Request.Now:
		pod = n.Request.Pod
	case given:
		pod = n.Stands.Pod
	}
	return pod, s.hold(n).text
}

// room reports whether one more node may be given up.
func (s *spender) room(n *judged) bool {
	domain := s.domain(n)
	switch {
	case s.plan.Broken || s.unsure(n):
		return false
	case n.GangPods == 0: // no gang is hurt
		return true
	}
	most := s.plan.Cluster.Max
	if n.word != nil {
		most-- // words do not use up what sick nodes need
	}
	return s.plan.Cluster.Out < most && (n.Domain == "" || domain.Out < domain.Max)
}

func (s *spender) hold(n *judged) answer {
	p, domain := s.plan, s.domain(n)
	switch {
	case p.Broken:
		return answer{outcome: Hold, reason: Breaker, text: fmt.Sprintf("%d of %d nodes are sick at once, and from %d %% on no new decision is made", p.Red, p.Of, s.config.BreakerPercent)}
	case s.unsure(n):
		return answer{outcome: Hold, reason: n.Stands.Reason}
	case n.Domain != "" && domain.Out >= domain.Max:
		return answer{outcome: Hold, reason: DomainBudget, text: fmt.Sprintf("%d of at most %d nodes of %s are out", domain.Out, domain.Max, n.Domain)}
	}
	return answer{outcome: Hold, reason: ClusterBudget, text: fmt.Sprintf("%d of at most %d nodes of the cluster are out", p.Cluster.Out, p.Cluster.Max)}
}

// unsure reports whether a dead node, held as a whole or but for one pod, was silent for too short a time since the breaker or a suspected
// partition ended: nodes that come back do so over several seconds.
func (s *spender) unsure(n *judged) bool {
	if n.Stands.Outcome != Hold && n.Stands.Pod == "" || n.Verdict.Action == nodehealth.Evict || !n.sick {
		return false
	}
	v := s.view
	v.PartitionSuspected = latest(v.PartitionSuspected, v.Broken)
	return s.plan.PartitionSuspected || s.plan.Back || !n.unreachable(s.config, v, s.now)
}

func (s *spender) domain(n *judged) Use {
	use, ok := s.plan.Domains[n.Domain]
	if !ok {
		use.Max = s.config.MaxOutPerDomain.Of(s.sizes[n.Domain])
		if n.Domain != "" {
			s.plan.Domains[n.Domain] = use
		}
	}
	return use
}

func (s *spender) take(n *judged) {
	s.plan.Cluster.Out++
	use := s.domain(n)
	use.Out++
	if n.Domain != "" {
		s.plan.Domains[n.Domain] = use
	}
}

// settle makes the decision; if it equals the present one, that is returned unchanged.
func settle(n *judged, a answer, v View, now time.Time) Decision {
	o := Outage{Outcome: n.want, Since: now}
	if n.want == Evict {
		o.Requested = n.requested()
		o.Outcome, o.Reason, o.Dead, o.Idle, o.Pod = a.outcome, a.reason, n.contact == dead, a.idle, a.pod
	}
	if o.Outcome == None {
		return Decision{Node: n.Name, Changed: n.Stands != Outage{}}
	}
	o.Cause, o.Message = n.why(v, now)
	switch {
	case a.text == "":
	case o.Outcome == Hold:
		o.Message = join(o.Message, "held: "+a.text)
	default:
		o.Message = join(o.Message, "its other pods are held: "+a.text)
	}
	had := n.Stands
	if had.Outcome == o.Outcome {
		o.Since = had.Since
		if had.Cause == o.Cause && had.Reason == o.Reason && had.Dead == o.Dead && had.Idle == o.Idle && had.Pod == o.Pod &&
			had.Requested == o.Requested {
			return Decision{Node: n.Name, Outage: had}
		}
	}
	return Decision{Node: n.Name, Outage: o, Changed: true}
}

// why returns the cause and the message for users.
func (n *judged) why(v View, now time.Time) (cause, message string) {
	var silence string
	if n.contact != inContact {
		silence = fmt.Sprintf("the node's lease was not renewed for %s", now.Sub(latest(n.LeaseRenewed, v.Led)).Round(time.Second))
		switch {
		case n.contact == late:
			silence += ", though agents on it report"
		case n.Agents > 0:
			silence += fmt.Sprintf(" and no agent on it reported for %s", now.Sub(latest(n.AgentContact, v.Led)).Round(time.Second))
		default:
			silence += " and no agent on it ever reported"
		}
	}
	switch {
	case n.Verdict.Action == nodehealth.Evict || n.want == Exclude && n.Verdict.Action == nodehealth.Exclude:
		return n.Verdict.Cause, join(n.Verdict.Message, silence, n.Request.Message)
	case n.word != nil:
		return CauseSuspected, join(n.wordText(), silence, n.Request.Message)
	case n.requested() && !n.sick:
		return CauseByHand, join(n.Request.Message, silence)
	}
	return CauseUnreachable, join(silence, n.Request.Message)
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}
