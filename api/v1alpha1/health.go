package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeNamespace is where the manifests install the node daemon.
const NodeNamespace = "holdfast-node"

// Annotations and taints of a Node. The node's daemon writes the first three on its own Node, the controller the other two.
const (
	// AnnotationHealth carries the daemon's verdict as JSON (type NodeHealth).
	AnnotationHealth = Prefix + "health"
	// TaintUnhealthy (NoSchedule, or PreferNoSchedule while NodeHealth.Soft; value: the cause) exists while the verdict's action is
	// Exclude or Evict.
	TaintUnhealthy = Prefix + "unhealthy"
	// ConditionHealthy is the verdict as a Node condition: False while the action is not None, Unknown while
	// nothing can be said.
	ConditionHealthy = "HoldfastHealthy"
	// AnnotationOutage carries what the cluster decided as JSON (type NodeOutage).
	AnnotationOutage = Prefix + "outage"
	// AnnotationGPUs is written by people: how many GPUs the node really has, where it has fewer than it once had.
	AnnotationGPUs = Prefix + "gpus"
	// AnnotationReleaseGPUs is written by people: the daemon lets go of the GPUs for as long as it stands, whatever it says but "false".
	AnnotationReleaseGPUs = Prefix + "release-gpus"
	// TaintOutage (NoSchedule, or PreferNoSchedule while NodeHealth.Soft; value: the cause) exists while AnnotationOutage does.
	TaintOutage = Prefix + "outage"
)

// NodeAction is the action of a verdict.
type NodeAction string

const (
	// ActionNone: nothing is wrong.
	ActionNone NodeAction = "None"
	// ActionWatch: a finding for users; nothing is done.
	ActionWatch NodeAction = "Watch"
	// ActionExclude: nothing new is placed on the node.
	ActionExclude NodeAction = "Exclude"
	// ActionEvict: the node is of no use to what runs there; pods of gangs are replaced.
	ActionEvict NodeAction = "Evict"
)

// NodeHealth is a daemon's whole verdict on its node.
type NodeHealth struct {
	Action NodeAction `json:"action"`
	// Cause is one word, the same in taint, event, metric label and runbook; empty: healthy.
	Cause string `json:"cause,omitempty"`
	// Message is the verdict in one line for people.
	Message string `json:"message,omitempty"`
	// Next is what to do about it, for people.
	Next string `json:"next,omitempty"`
	// Since is when the cause was first seen; null: healthy.
	Since metav1.MicroTime `json:"since"`
	// Devices are the UUIDs of the GPUs concerned.
	Devices []string `json:"devices,omitempty"`
	// Evidence is what was seen, oldest first, at most MaxEvidence.
	Evidence []NodeEvidence `json:"evidence,omitempty"`
	// Released is at whose word the daemon has let go of the GPUs; empty: it has not.
	Released string `json:"released,omitempty"`
	// Soft: pods repair the node, so the taints are PreferNoSchedule. Members of gangs are still not placed there.
	Soft bool `json:"soft,omitempty"`
	// Boot is the boot id of the kernel that the verdict was made under.
	Boot string `json:"boot,omitempty"`
	// Settled: records of that boot's kernel log up to this number were dealt with.
	Settled uint64 `json:"settled,omitempty"`
	// Seen is what was there, by which a later daemon knows what is missing.
	Seen NodeSeen `json:"seen,omitzero"`
}

// NodeSeen is what a daemon has seen of its node.
type NodeSeen struct {
	// GPUs is how many the node is to have: the most that its label said or that NVML listed, whatever boot it was under, or
	// what AnnotationGPUs says.
	GPUs int32 `json:"gpus,omitempty"`
	// NVLinks are the most that were active under NodeHealth.Boot, by GPU; each GPU that NVML listed has its line.
	NVLinks map[string]int32 `json:"nvlinks,omitempty"`
}

// MaxEvidence bounds NodeHealth.Evidence.
const MaxEvidence = 8

// NodeEvidence is one thing that was seen.
type NodeEvidence struct {
	At metav1.MicroTime `json:"at"`
	// Source is nvml, kmsg or probe.
	Source string `json:"source"`
	// Device is a UUID or a PCI address; empty: the node.
	Device string `json:"device,omitempty"`
	// Cause is what it was taken for.
	Cause string `json:"cause,omitempty"`
	Text  string `json:"text"`
}

// NodeDecision is what the cluster decided about a node.
type NodeDecision string

const (
	// DecisionExclude: nothing new is placed there; what runs is left alone.
	DecisionExclude NodeDecision = "Exclude"
	// DecisionEvict: pods of gangs there are replaced.
	DecisionEvict NodeDecision = "Evict"
	// DecisionHold: would evict, but may not now; the message says why.
	DecisionHold NodeDecision = "Hold"
)

// NodeOutage is what the controller decided about a node; it stays until the node is healthy again.
type NodeOutage struct {
	Decision NodeDecision `json:"decision"`
	// Cause is the verdict's cause, or CauseNodeUnreachable.
	Cause string `json:"cause"`
	// Reason is what a node on hold waits for: ClusterBudget, DomainBudget or Breaker.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is when this decision was first made.
	Since metav1.MicroTime `json:"since"`
	// Dead: neither the node's lease nor any agent on it was heard; nothing there can be asked.
	Dead bool `json:"dead,omitempty"`
	// Idle: no pod of a gang was there while this decision stood, so it spends nothing of the outage budget.
	Idle bool `json:"idle,omitempty"`
}

// CauseGPUsReleased: the daemon has let go of the GPUs for a repair. It is the condition's reason also where another cause is worse.
const CauseGPUsReleased = "GPUsReleased"

// CauseNodeUnreachable: a node's lease is not renewed.
const CauseNodeUnreachable = "NodeUnreachable"

// CauseNodeGone: the Node was deleted before its pods had ended.
const CauseNodeGone = "NodeGone"
