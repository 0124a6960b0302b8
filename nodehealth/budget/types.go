package budget

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// Outcome is what is decided about a node.
type Outcome string

const (
	// None: the node is used.
	None Outcome = ""
	// Exclude: nothing new is placed there; what runs is left alone.
	Exclude Outcome = "Exclude"
	// Hold: would be Evict; Outage.Reason says what it waits for.
	Hold Outcome = "Hold"
	// Evict: pods of gangs there are replaced.
	Evict Outcome = "Evict"
)

// Reason is why a node is held.
type Reason string

const (
	// ClusterBudget: as many nodes are out as the cluster may miss.
	ClusterBudget Reason = "ClusterBudget"
	// DomainBudget: as many nodes are out as the node's failure domain may miss.
	DomainBudget Reason = "DomainBudget"
	// Breaker: so many nodes are red at once that the cause is more likely one than many.
	Breaker Reason = "Breaker"
)

// CauseUnreachable is the cause where a node is not heard.
const CauseUnreachable = "NodeUnreachable"

// Verdict is what the node's own daemon says.
type Verdict struct {
	Action  nodehealth.Action
	Cause   string
	Message string
	Since   time.Time
}

// Outage is a decision that stands; the zero value is None.
type Outage struct {
	Outcome Outcome
	Cause   string
	// Reason is set if and only if the outcome is Hold.
	Reason  Reason
	Message string
	// Since is when this outcome was decided.
	Since time.Time
	// Dead: neither the node's lease nor any agent on it was heard.
	Dead bool
	// Idle: given up (Evict) when no pod of a gang was there, and none has been since: it hurt no gang and spends no
	// budget. Once false it stays false for this outcome, whatever happens to the pods.
	Idle bool
}

// Node is what is known of one node.
type Node struct {
	Name string
	// Domain is its failure domain; empty: unknown, no budget but the cluster's holds for it.
	Domain string
	// GPUs it has. A node without GPUs, gangs, verdict and outage is none of ours: it is neither judged nor counted.
	GPUs int
	// GangPods on it that are not yet replaced.
	GangPods int
	Verdict  Verdict
	// Lease reports whether the node has one; without it silence means nothing.
	Lease bool
	// LeaseRenewed is when this process last observed a renewal of the lease, by Decide's clock; zero: not since View.Led.
	LeaseRenewed time.Time
	// LeaseDuration is for how long a renewal of the lease holds, by its own word; 0: it does not say.
	LeaseDuration time.Duration
	// Agents counts the agents on it that ever reported, or that may have reported before View.Led; AgentContact is when the last
	// of them did, zero: not since View.Led.
	Agents       int
	AgentContact time.Time
	// Stands is the present decision.
	Stands Outage
}

// View is what Decide looks at.
type View struct {
	Nodes []Node
	// Led is when the caller began to listen: everything counts as heard then.
	Led time.Time
	// PartitionSuspected is when a plan last said so; zero: never. Everything counts as heard then: after a time without hearing, nodes are
	// given the time to be heard again.
	PartitionSuspected time.Time
	// Broken is when a plan last said so; zero: never.
	Broken time.Time
}

// Decision is what is decided about one node.
type Decision struct {
	Node string
	Outage
	// Changed: it differs from what stands.
	Changed bool
}

// Use is how much of a budget is used: nodes that were given up with pods of gangs on them and are not yet well.
type Use struct{ Out, Max int }

// Plan is the answer: one decision per node, by name.
type Plan struct {
	Decisions []Decision
	// PartitionSuspected: nearly no lease moves, so it is us or the API server and not the nodes. Nothing is decided from silence.
	PartitionSuspected bool
	// Broken: the breaker stops new decisions.
	Broken bool
	// Back: a node that was called dead is heard again, and others may be about to be: none of those that are held is
	// given up on a silence that began before.
	Back bool
	// Red counts nodes that are sick beyond use or dead; Of counts the nodes that are ours.
	Red, Of int
	Cluster Use
	// Domains are those with a node out or held, by name.
	Domains map[string]Use
}

// Config is what people may choose.
type Config struct {
	// MaxOut bounds nodes out of the cluster, MaxOutPerDomain of one failure domain.
	MaxOut, MaxOutPerDomain Limit
	// BreakerPercent: while this share of nodes, at least BreakerNodes, are sick at once, no new decision is made.
	BreakerPercent, BreakerNodes int
	// LeaseTimeout and AgentTimeout together mean death where agents were heard; LeaseAloneTimeout means death where none ever was.
	// These and LeaseLate are minimums: forLease returns the values of a node.
	LeaseTimeout, AgentTimeout, LeaseAloneTimeout time.Duration
	// LeaseLate excludes a node whose agents are heard.
	LeaseLate time.Duration
	// PartitionPercent of leases silent for LeaseTimeout mean that the caller is cut off.
	PartitionPercent int
}

const (
	// usualLease is what the values of Defaults are shares of: a kubelet renews its lease every quarter of it.
	usualLease = 40 * time.Second
	// longestLease bounds what a lease says of itself, so that no node is alive for ever by its own word.
	longestLease = 10 * time.Minute
)

// forLease is the Config of one node, by its own lease: a kubelet of a longer lease renews it less often, and rests between by intention.
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

// Defaults are the values of Config that hold where people choose none. A kubelet renews its lease every 10 s where people choose no other
// duration for it.
func Defaults() Config {
	return Config{
		MaxOut: Limit{Percent: 5}, MaxOutPerDomain: Limit{Percent: 20},
		BreakerPercent: 40, BreakerNodes: 5,
		LeaseTimeout: 12 * time.Second, AgentTimeout: 5 * time.Second, LeaseAloneTimeout: 40 * time.Second, LeaseLate: 22 * time.Second,
		PartitionPercent: 80,
	}
}

// Validate says which value cannot be, and what may.
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

// ParseLimit reads "3" or "5%". "0" means none at all.
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

// Of is the limit in a set of nodes of this size.
func (l Limit) Of(nodes int) int {
	if l.Percent > 0 {
		return max(1, nodes*l.Percent/100)
	}
	return l.Count
}
