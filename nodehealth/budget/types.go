package budget

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// Outcome is a decision about a node.
type Outcome string

const (
	// None: the node is used.
	None Outcome = ""
	// Exclude: no new pod is placed there; running pods stay.
	Exclude Outcome = "Exclude"
	// Hold: Evict, if the budget allowed it; Outage.Reason is what it waits for.
	Hold Outcome = "Hold"
	// Evict: pods of gangs there are replaced.
	Evict Outcome = "Evict"
)

// Reason is why a node is held.
type Reason string

const (
	// ClusterBudget: the cluster's limit of nodes that are out is reached.
	ClusterBudget Reason = "ClusterBudget"
	// DomainBudget: the failure domain's limit of nodes that are out is reached.
	DomainBudget Reason = "DomainBudget"
	// Breaker: so many nodes are red at once that they probably have a common cause.
	Breaker Reason = "Breaker"
)

// CauseUnreachable is the cause of a silent node.
const CauseUnreachable = "NodeUnreachable"

// CauseByHand is the cause of a node that is well, and that a user's request has evicted.
const CauseByHand = "EvictedByHand"

// CauseSuspected is the cause of a node that is out by the word of gangs alone.
const CauseSuspected = "NodeSuspected"

// Request is a user's request to move pods off a node; the zero value is none.
type Request struct {
	At time.Time
	// Until is when it ends; zero: never.
	Until time.Time
	// Message has who and why.
	Message string
	// Now: no budget and no breaker holds it.
	Now bool
	// Pod is the only pod that is replaced; empty: all pods of gangs.
	Pod string
}

// Suspicion is the word of one gang that a node is at fault.
type Suspicion struct {
	Namespace, Gang string
	At              time.Time
	// Until is when the node is no longer excluded for it.
	Until time.Time
	// Proven: a node check found it. Proven suspicions of two namespaces ask for Evict while both are younger than SuspicionMemory.
	Proven bool
}

// SuspicionMemory is how long a proven suspicion counts beside one of another namespace.
const SuspicionMemory = 28 * 24 * time.Hour

// holds reports whether the request is in force.
func (r Request) holds(now time.Time) bool {
	return !r.At.IsZero() && (r.Until.IsZero() || now.Before(r.Until))
}

// Verdict is the verdict of the node's daemon.
type Verdict struct {
	Action  nodehealth.Action
	Cause   string
	Message string
	Since   time.Time
}

// Outage is the present decision; the zero value is None.
type Outage struct {
	Outcome Outcome
	Cause   string
	// Reason is set if and only if the outcome is Hold.
	Reason  Reason
	Message string
	// Since is when this outcome was decided.
	Since time.Time
	// Dead: the node's lease is not renewed, and no agent on the node reports.
	Dead bool
	// Idle: the node was given up (Evict) while it had no pod of a gang, and has had none since, so that it spends no budget. Once false it
	// stays false for this outcome.
	Idle bool
	// Pod is the only pod that Evict replaces; empty: all pods of gangs.
	Pod string
	// Requested: a user's request is in force, whatever the cause.
	Requested bool
}

// spent reports whether the node was given up with pods of gangs on it, so that it spends the budget.
func (o Outage) spent() bool { return o.Outcome == Evict && !o.Idle }

// Node is the state of one node.
type Node struct {
	Name string
	// Domain is its failure domain; empty: unknown, only the cluster's budget applies.
	Domain string
	// GPUs is the number that it has. A node without GPUs, gangs, verdict and outage is neither judged nor counted.
	GPUs int
	// GangPods is the number of its pods of gangs that are not replaced yet.
	GangPods int
	Verdict  Verdict
	Request  Request
	// Suspicions are the words of gangs, in any order.
	Suspicions []Suspicion
	// Passes are the node checks that the node passed, in any order.
	Passes []Pass
	// Lease reports whether the node has a lease; without one, missing renewals mean nothing.
	Lease bool
	// LeaseRenewed is when this process last observed a renewal of the lease, by Decide's clock; zero: not since View.Led.
	LeaseRenewed time.Time
	// LeaseDuration is the duration in the node's lease; 0: none.
	LeaseDuration time.Duration
	// Agents is the number of its agents that ever reported, or may have reported before View.Led; AgentContact is when the last of them
	// did, zero: not since View.Led.
	Agents       int
	AgentContact time.Time
	// Stands is the present decision.
	Stands Outage
}

// View is the input of Decide.
type View struct {
	Nodes []Node
	// Led is when the caller began to receive: every contact counts as made then.
	Led time.Time
	// PartitionSuspected is when a plan last suspected a partition; zero: never. Every contact counts as made then: after a partition,
	// nodes get the time to renew their leases.
	PartitionSuspected time.Time
	// Broken is when the breaker last stopped a plan; zero: never.
	Broken time.Time
}

// Decision is the decision about one node.
type Decision struct {
	Node string
	Outage
	// Changed: it differs from the present one.
	Changed bool
}

// Use is the use of a budget: nodes that were given up with pods of gangs on them and are not well yet.
type Use struct{ Out, Max int }

// Plan is the answer: one decision per node, by name.
type Plan struct {
	Decisions []Decision
	// PartitionSuspected: nearly no lease is renewed, so this process or the API server is at fault. Silent nodes lead to no decision.
	PartitionSuspected bool
	// Broken: the breaker stops new decisions.
	Broken bool
	// Back: contact to a dead node is restored, and others may follow: no held node is given up for a silence that began before.
	Back bool
	// Red counts nodes that are sick or dead, so that they should be evicted; Of counts all judged nodes.
	Red, Of int
	Cluster Use
	// Domains are those with a node out or held, by name.
	Domains map[string]Use
}

// Config is the configuration, which users may set.
type Config struct {
	// MaxOut bounds nodes out of the cluster, MaxOutPerDomain of one failure domain.
	MaxOut, MaxOutPerDomain Limit
	// MaxSuspected bounds the nodes that are out by the word of gangs, MaxSuspectedPerNamespace by that of gangs of one namespace.
	MaxSuspected, MaxSuspectedPerNamespace Limit
	// BreakerPercent: while this share of nodes, at least BreakerNodes, are sick at once, no new decision is made.
	BreakerPercent, BreakerNodes int
	// LeaseTimeout and AgentTimeout together make a node dead on which agents reported; LeaseAloneTimeout makes one dead on which none ever
	// did. These and LeaseLate are minimums: forLease returns the values of a node.
	LeaseTimeout, AgentTimeout, LeaseAloneTimeout time.Duration
	// LeaseLate is when a node whose agents report is excluded.
	LeaseLate time.Duration
	// PartitionPercent: if this share of leases is not renewed for LeaseTimeout, the caller counts as cut off.
	PartitionPercent int
}

const (
	// usualLease is the lease duration for which Defaults are made: a kubelet renews its lease after a quarter of it.
	usualLease = 40 * time.Second
	// longestLease bounds a lease's duration, so that no node can make itself count as alive for ever.
	longestLease = 10 * time.Minute
)

// forLease returns the Config of one node by its lease's duration: a kubelet with a longer lease renews it less often.
func (c Config) forLease(lease time.Duration) Config {
	share := func(least, usual time.Duration) time.Duration {
		perSecond := usual / time.Duration(usualLease/time.Second)
		return max(least, perSecond*time.Duration(min(lease, longestLease)/time.Second))
	}
	d := Defaults()
	c.LeaseTimeout, c.AgentTimeout = share(c.LeaseTimeout, d.LeaseTimeout), share(c.AgentTimeout, d.AgentTimeout)
	c.LeaseAloneTimeout, c.LeaseLate = share(c.LeaseAloneTimeout, d.LeaseAloneTimeout), share(c.LeaseLate, d.LeaseLate)
	return c
}

// Defaults returns the Config for values that users do not set. They are made for the kubelet's default, which renews its lease every 10 s.
func Defaults() Config {
	return Config{
		MaxOut: Limit{Percent: 5}, MaxOutPerDomain: Limit{Percent: 20},
		MaxSuspected: Limit{Percent: 10}, MaxSuspectedPerNamespace: Limit{Percent: 2},
		BreakerPercent: 40, BreakerNodes: 5,
		LeaseTimeout: 12 * time.Second, AgentTimeout: 5 * time.Second, LeaseAloneTimeout: 40 * time.Second, LeaseLate: 22 * time.Second,
		PartitionPercent: 80,
	}
}

// Validate returns an error that names an invalid value and the valid ones.
func (c Config) Validate() error {
	switch {
	case c.BreakerPercent < 1 || c.BreakerPercent > 100:
		return fmt.Errorf("breaker %d%%: give a share from 1%% to 100%%", c.BreakerPercent)
	case c.LeaseTimeout < 11*time.Second:
		return fmt.Errorf("lease silent after %s: a kubelet renews its lease every 10s; give at least 11s", c.LeaseTimeout)
	case c.AgentTimeout < 3*time.Second:
		return fmt.Errorf("agent silent after %s: an agent reports every second; give at least 3s", c.AgentTimeout)
	case c.LeaseAloneTimeout < c.LeaseTimeout:
		return fmt.Errorf("lease silent without agents after %s: less evidence cannot mean death sooner; give at least %s", c.LeaseAloneTimeout, c.LeaseTimeout)
	case c.LeaseLate < c.LeaseTimeout:
		return fmt.Errorf("lease late after %s: it is late no sooner than it is silent; give at least %s", c.LeaseLate, c.LeaseTimeout)
	case c.PartitionPercent < 1 || c.PartitionPercent > 100 || c.BreakerNodes < 1:
		return fmt.Errorf("partition suspected at %d%%, breaker from %d nodes: give a share from 1%% to 100%% and at least 1 node", c.PartitionPercent, c.BreakerNodes)
	}
	return nil
}

// Limit is a number of nodes, or a share of them that is never less than one node.
type Limit struct{ Count, Percent int }

// ParseLimit parses "3" or "5%". "0" means no node at all.
func ParseLimit(text string) (Limit, error) {
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 0 || strings.HasPrefix(digits, "+"):
		return Limit{}, fmt.Errorf("%q: give a number of nodes such as 3, or a share such as 5%%", text)
	case !percent:
		return Limit{Count: n}, nil
	case n < 1 || n > 100:
		return Limit{}, fmt.Errorf("%q: give a share from 1%% to 100%%; 0 (without %%) means none at all", text)
	}
	return Limit{Percent: n}, nil
}

func (l Limit) String() string {
	if l.Percent > 0 {
		return fmt.Sprintf("%d%%", l.Percent)
	}
	return strconv.Itoa(l.Count)
}

// Of returns the limit for that many nodes.
func (l Limit) Of(nodes int) int {
	if l.Percent > 0 {
		return max(1, nodes*l.Percent/100)
	}
	return l.Count
}
