package budget

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/nodehealth"
)

// TestScripts plays testdata/*.txt; the commands are
//
//	config max-out=N|N% domain=N|N% breaker=N suspected=N|N% namespace=N|N%
//	nodes N [domain=D] [gpus=N] [pods=N] [agents=N] [lease=S]   N more nodes, n1, n2, ...
//	set NODES KEY=VALUE ...      domain, gpus, pods, agents, lease: for how many seconds a renewal holds
//	verdict NODES ACTION CAUSE [MESSAGE_WITH_UNDERSCORES]
//	evict NODES S [now] [pod=UID]  a user's request, for S seconds; undo NODES
//	suspect NODES NAMESPACE/GANG S [proven]  a gang's word, for S seconds; trust NODES
//	pass NODES NAMESPACE/GANG N              the node passes a gang's check with N devices
//	heal NODES | gone NODES
//	mute NODES lease|agents|all  not heard from now on; speak NODES lease|agents|all
//	at S                         second by second to then, deciding each time
//	lead                         another leader takes over
//
// NODES is "all" or a list such as n1,n3-n5.
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		s := &stage{t: t, config: Defaults(), out: out, holds: history{t: t, r: rand.New(rand.NewSource(1)), idle: map[string]bool{}}}
		s.view.Led = s.clock()
		return func(line string) { s.command(strings.Fields(line)) }
	})
}

type stage struct {
	t      *testing.T
	config Config
	second int
	view   View
	// mute has the nodes with a silent lease ("n1 lease") or with silent agents ("n1 agents").
	mute map[string]bool
	last Plan
	out  *strings.Builder
	// holds checks the rules that every plan must keep, independent of the golden file.
	holds history
}

func (s *stage) clock() time.Time {
	return time.Unix(1_700_000_000, 0).UTC().Add(time.Duration(s.second) * time.Second)
}

func (s *stage) number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatalf("%q is no number", v)
	}
	return n
}

func (s *stage) command(f []string) {
	switch f[0] {
	case "config":
		s.configure(f[1:])
	case "nodes":
		for range s.number(f[1]) {
			n := Node{Name: fmt.Sprintf("n%d", len(s.view.Nodes)+1), GPUs: 8, Lease: true, LeaseRenewed: s.clock(), AgentContact: s.clock()}
			s.set(&n, f[2:])
			s.view.Nodes = append(s.view.Nodes, n)
		}
	case "gone":
		gone := s.named(f[1])
		s.view.Nodes = slices.DeleteFunc(s.view.Nodes, func(n Node) bool {
			return slices.ContainsFunc(gone, func(g *Node) bool { return g.Name == n.Name })
		})
	case "lead":
		s.view.Led, s.view.PartitionSuspected, s.view.Broken = s.clock(), time.Time{}, time.Time{}
		for i := range s.view.Nodes {
			s.view.Nodes[i].LeaseRenewed, s.view.Nodes[i].AgentContact = time.Time{}, time.Time{}
		}
	case "at":
		for until := s.number(f[1]); s.second < until; {
			s.second++
			s.listen()
			s.decide()
		}
		return
	default:
		for _, n := range s.named(f[1]) {
			s.change(f, n)
		}
	}
	s.decide()
}

func (s *stage) configure(values []string) {
	for _, kv := range values {
		k, v, _ := strings.Cut(kv, "=")
		limit, err := ParseLimit(v)
		if err != nil {
			s.t.Fatal(err)
		}
		switch k {
		case "max-out":
			s.config.MaxOut = limit
		case "domain":
			s.config.MaxOutPerDomain = limit
		case "suspected":
			s.config.MaxSuspected = limit
		case "namespace":
			s.config.MaxSuspectedPerNamespace = limit
		case "breaker":
			s.config.BreakerPercent = limit.Percent
		default:
			s.t.Fatalf("unknown %q", k)
		}
	}
}

func (s *stage) named(list string) []*Node {
	var out []*Node
	for i := range s.view.Nodes {
		n := &s.view.Nodes[i]
		for _, part := range strings.Split(list, ",") {
			first, last, many := strings.Cut(part, "-")
			number := s.number(n.Name[1:])
			if list == "all" || part == n.Name || many && number >= s.number(first[1:]) && number <= s.number(last[1:]) {
				out = append(out, n)
			}
		}
	}
	if len(out) == 0 {
		s.t.Fatalf("no node %s", list)
	}
	return out
}

func (s *stage) set(n *Node, values []string) {
	for _, kv := range values {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "domain":
			n.Domain = v
		case "gpus":
			n.GPUs = s.number(v)
		case "pods":
			n.GangPods = s.number(v)
		case "agents":
			n.Agents = s.number(v)
		case "lease":
			n.LeaseDuration = time.Duration(s.number(v)) * time.Second
		default:
			s.t.Fatalf("unknown %q", k)
		}
	}
}

func (s *stage) change(f []string, n *Node) {
	switch f[0] {
	case "set":
		s.set(n, f[2:])
	case "verdict":
		action, ok := nodehealth.ParseAction(f[2])
		if !ok {
			s.t.Fatalf("%q is no action", f[2])
		}
		n.Verdict = Verdict{Action: action, Cause: f[3], Since: s.clock()}
		if len(f) > 4 {
			n.Verdict.Message = strings.ReplaceAll(f[4], "_", " ")
		}
	case "evict":
		n.Request = Request{At: s.clock(), Until: s.clock().Add(time.Duration(s.number(f[2])) * time.Second), Message: "requested by ada: a fan"}
		for _, word := range f[3:] {
			pod, scoped := strings.CutPrefix(word, "pod=")
			n.Request.Now = n.Request.Now || word == "now"
			if scoped {
				n.Request.Pod = pod
			}
		}
	case "suspect":
		namespace, gang, _ := strings.Cut(f[2], "/")
		n.Suspicions = append(n.Suspicions, Suspicion{Namespace: namespace, Gang: gang, At: s.clock(),
			Until: s.clock().Add(time.Duration(s.number(f[3])) * time.Second), Proven: len(f) > 4})
	case "pass":
		namespace, gang, _ := strings.Cut(f[2], "/")
		n.Passes = append(n.Passes, Pass{Namespace: namespace, Gang: gang, At: s.clock(), Devices: s.number(f[3])})
	case "trust":
		n.Suspicions = nil
	case "undo":
		n.Request = Request{}
	case "heal":
		n.Verdict = Verdict{Action: nodehealth.None}
	case "mute", "speak":
		if s.mute == nil {
			s.mute = map[string]bool{}
		}
		for _, what := range []string{"lease", "agents"} {
			if f[2] == what || f[2] == "all" {
				s.mute[n.Name+" "+what] = f[0] == "mute"
			}
		}
	default:
		s.t.Fatalf("unknown command %q", f[0])
	}
}

// listen renews leases every 10 seconds, or every quarter of their duration, at different times, and makes agents report every second.
func (s *stage) listen() {
	for i := range s.view.Nodes {
		n := &s.view.Nodes[i]
		every := max(10, int(n.LeaseDuration.Seconds())/4)
		if !s.mute[n.Name+" lease"] && (s.second+s.number(n.Name[1:]))%every == 0 {
			n.LeaseRenewed = s.clock()
		}
		if n.Agents > 0 && !s.mute[n.Name+" agents"] {
			n.AgentContact = s.clock()
		}
	}
}

func (s *stage) decide() {
	slices.SortFunc(s.view.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) }) // as decisions are
	p := Decide(s.config, s.view, s.clock())
	s.holds.config, s.holds.view, s.holds.now = s.config, s.view, s.clock()
	s.holds.check(p, slices.Clone(s.view.Nodes))
	if p.PartitionSuspected {
		s.view.PartitionSuspected = s.clock()
	}
	if p.Broken || p.Back {
		s.view.Broken = s.clock()
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(s.out, "  %3ds "+format+"\n", append([]any{s.second}, args...)...)
	}
	if p.PartitionSuspected != s.last.PartitionSuspected {
		say("partition suspected: %v", p.PartitionSuspected)
	}
	if p.Broken != s.last.Broken {
		say("breaker: %v (%d of %d red)", p.Broken, p.Red, p.Of)
	}
	for i, d := range p.Decisions {
		if !d.Changed {
			continue
		}
		line := fmt.Sprintf("%s: %s", d.Node, d.Outcome)
		if d.Outcome == None {
			line = d.Node + ": free"
		} else {
			line += " " + d.Cause
		}
		if d.Reason != "" {
			line += " " + string(d.Reason)
		}
		if d.Dead {
			line += " dead"
		}
		if d.Idle {
			line += " idle"
		}
		if d.Requested && d.Cause != CauseByHand {
			line += " requested"
		}
		if d.Pod != "" {
			line += " pod=" + d.Pod
		}
		if d.Message != "" {
			line += ": " + d.Message
		}
		say("%s", line)
		s.view.Nodes[i].Stands = d.Outage
	}
	if p.Cluster != s.last.Cluster {
		say("out %d of at most %d", p.Cluster.Out, p.Cluster.Max)
	}
	s.last = p
}

// TestDecide checks one plan each.
func TestDecide(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	ago := func(span time.Duration) time.Time { return now.Add(-span) }
	nodes := func(n int, node Node) []Node {
		all := slices.Repeat([]Node{node}, n)
		for i := range all {
			all[i].Name = fmt.Sprintf("n%02d", i)
		}
		return all
	}
	lost := Outage{Outcome: Exclude, Cause: CauseUnreachable, Since: ago(time.Minute)}
	sick := Verdict{Action: nodehealth.Exclude, Cause: "TooHot", Since: ago(time.Second)}
	for name, c := range map[string]struct {
		nodes []Node
		says  func(Plan) any
		want  any
	}{
		"a node without GPUs is none of ours where its daemon finds nothing": {
			nodes(3, Node{Verdict: Verdict{Action: nodehealth.None}, Lease: true}),
			func(p Plan) any { return []any{p.Of, p.Decisions[0].Outcome} },
			[]any{0, None},
		},
		"a node without GPUs is ours where its daemon watches something": {
			nodes(3, Node{Verdict: Verdict{Action: nodehealth.Watch}}), func(p Plan) any { return p.Of }, 3},
		"a share of a domain is one of its nodes": {
			nodes(15, Node{Domain: "rack", GPUs: 8, GangPods: 1, Verdict: Verdict{Action: nodehealth.Evict}, Stands: Outage{Outcome: Hold}}),
			func(p Plan) any { return p.Domains["rack"] },
			Use{Max: 3},
		},
		"another cause does not make an outage begin anew": {
			nodes(1, Node{GPUs: 8, Verdict: sick, Stands: lost, LeaseRenewed: now}),
			func(p Plan) any { return []any{p.Decisions[0].Cause, p.Decisions[0].Since, p.Decisions[0].Changed} },
			[]any{"TooHot", lost.Since, true},
		},
		"four silent leases of five are a partition": {
			append(nodes(4, Node{GPUs: 8, Lease: true}), Node{Name: "heard", GPUs: 8, Lease: true, LeaseRenewed: now}),
			func(p Plan) any { return p.PartitionSuspected },
			true,
		},
		"two red nodes of five hold all that is new": {
			append(nodes(2, Node{
				GPUs:    8,
				Verdict: Verdict{Action: nodehealth.Evict},
			}), Node{Name: "a", GPUs: 8}, Node{Name: "b", GPUs: 8}, Node{Name: "c", GPUs: 8}),
			func(p Plan) any { return p.Broken },
			true,
		},
		"who is held because the cluster has lost enough is told so": {
			append(nodes(20, Node{
				Domain:   "rack",
				GPUs:     8,
				GangPods: 1,
			}), Node{Name: "a", Domain: "rack", GPUs: 8, GangPods: 1, Verdict: Verdict{Action: nodehealth.Evict}},
				Node{Name: "b", Domain: "rack", GPUs: 8, GangPods: 1, Verdict: Verdict{Action: nodehealth.Evict}}),
			func(p Plan) any { return []any{p.Decisions[0].Outcome, p.Decisions[1].Reason} },
			[]any{Evict, ClusterBudget},
		},
		"a lease that moves takes back what a leader whose clock was ahead decided": {
			nodes(1, Node{
				GPUs:         8,
				Lease:        true,
				LeaseRenewed: now,
				Stands:       Outage{Outcome: Evict, Cause: CauseUnreachable, Dead: true, Since: now.Add(time.Hour)},
			}),
			func(p Plan) any { return p.Decisions[0].Outcome },
			None,
		},
		"a lease that is gone takes back nothing that was decided from silence": {
			nodes(1, Node{GPUs: 8, Agents: 1, Stands: lost}),
			func(p Plan) any { return []any{p.PartitionSuspected, p.Decisions[0].Outage} },
			[]any{false, lost},
		},
		"a partition takes back nothing that was decided from silence": {
			nodes(1, Node{GPUs: 8, Lease: true, LeaseRenewed: ago(5 * time.Minute), Agents: 1, Stands: lost}),
			func(p Plan) any { return []any{p.PartitionSuspected, p.Decisions[0].Outage} },
			[]any{true, lost},
		},
	} {
		p := Decide(Defaults(), View{Nodes: c.nodes, Led: ago(time.Hour)}, now)
		if got := c.says(p); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}
