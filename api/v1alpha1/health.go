package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeNamespace is where the manifests install the node daemon.
const NodeNamespace = "holdfast-node"

// Annotations, taints and the condition of a Node. The node daemon writes AnnotationHealth, TaintUnhealthy and ConditionHealthy on its own
// Node; the controller writes AnnotationOutage, TaintOutage, AnnotationSuspicions and
// AnnotationPasses.
const (
	// AnnotationHealth carries the daemon's verdict as JSON (type NodeHealth).
	AnnotationHealth = Prefix + "health"
	// TaintUnhealthy (NoSchedule, or PreferNoSchedule while NodeHealth.Soft; value: the cause) exists while the verdict's action is
	// Exclude or Evict.
	TaintUnhealthy = Prefix + "unhealthy"
	// ConditionHealthy is the verdict as a Node condition: True for action None, False for any other, Unknown while nothing can be queried.
	ConditionHealthy = "HoldfastHealthy"
	// AnnotationOutage carries the controller's decision as JSON (type NodeOutage).
	AnnotationOutage = Prefix + "outage"
	// AnnotationEvict, which `kubectl holdfast evict` writes, carries a request to move pods off the node as JSON (type NodeEviction).
	AnnotationEvict = Prefix + "evict"
	// AnnotationSuspicions carries the words of gangs that the node is at fault as JSON (a list of NodeSuspicion).
	AnnotationSuspicions = Prefix + "suspicions"
	// AnnotationPasses carries the node checks that the node passed as JSON (a list of NodePass).
	AnnotationPasses = Prefix + "passes"
	// AnnotationGPUs, which users write, is the number of GPUs that the node really has, if it has fewer than it once had.
	AnnotationGPUs = Prefix + "gpus"
	// AnnotationReleaseGPUs, which users write, makes the daemon release the GPUs while it exists with any value but "false".
	AnnotationReleaseGPUs = Prefix + "release-gpus"
	// TaintOutage (NoSchedule, or PreferNoSchedule while NodeHealth.Soft and no user's request is in force; value: the cause) exists while
	// AnnotationOutage exists.
	TaintOutage = Prefix + "outage"
)

// NodeAction is the action of a verdict.
type NodeAction string

const (
	// ActionNone: nothing is wrong.
	ActionNone NodeAction = "None"
	// ActionWatch: a finding is shown to users; Holdfast does nothing about it.
	ActionWatch NodeAction = "Watch"
	// ActionExclude: no new pod is placed on the node.
	ActionExclude NodeAction = "Exclude"
	// ActionEvict: the node cannot run training; pods of gangs there are replaced.
	ActionEvict NodeAction = "Evict"
)

// NodeHealth is a node daemon's verdict on its node.
type NodeHealth struct {
	Action NodeAction `json:"action"`
	// Cause is one word, the same in taint, event, metric label and runbook; empty: the node is healthy.
	Cause string `json:"cause,omitempty"`
	// Message is the verdict in one sentence.
	Message string `json:"message,omitempty"`
	// Next is what an administrator should do.
	Next string `json:"next,omitempty"`
	// Since is when the cause was first seen; null: the node is healthy.
	Since metav1.MicroTime `json:"since"`
	// Devices are the UUIDs of the affected GPUs.
	Devices []string `json:"devices,omitempty"`
	// Evidence is what the daemon saw, oldest first, at most MaxEvidence entries.
	Evidence []NodeEvidence `json:"evidence,omitempty"`
	// Released is the annotation or label that made the daemon release the GPUs; empty: it has not released them.
	Released string `json:"released,omitempty"`
	// Soft: pods repair the node, so the taints are PreferNoSchedule. Members of gangs are still not placed there.
	Soft bool `json:"soft,omitempty"`
	// Boot is the kernel's boot ID when the verdict was made.
	Boot string `json:"boot,omitempty"`
	// Settled: the daemon has handled that boot's kernel log records up to this number.
	Settled uint64 `json:"settled,omitempty"`
	// Seen is the hardware that the daemon has seen; a restarted daemon finds missing hardware by it.
	Seen NodeSeen `json:"seen,omitzero"`
}

// NodeSeen is the hardware that a daemon has seen in its node.
type NodeSeen struct {
	// GPUs is the number that the node should have: the value of AnnotationGPUs, else the most that its label or NVML ever showed, over all
	// boots.
	GPUs int32 `json:"gpus,omitempty"`
	// NVLinks is, by GPU, the most links that were active under NodeHealth.Boot. Each GPU that NVML listed has an entry.
	NVLinks map[string]int32 `json:"nvlinks,omitempty"`
}

// MaxEvidence bounds NodeHealth.Evidence.
const MaxEvidence = 8

// NodeEvidence is one observation.
type NodeEvidence struct {
	At metav1.MicroTime `json:"at"`
	// Source is nvml, kmsg or probe.
	Source string `json:"source"`
	// Device is a UUID or a PCI address; empty: the whole node.
	Device string `json:"device,omitempty"`
	// Cause is the cause that the daemon derived from it.
	Cause string `json:"cause,omitempty"`
	Text  string `json:"text"`
}

// NodeDecision is a decision of the controller about a node.
type NodeDecision string

const (
	// DecisionExclude: no new pod is placed there; running pods stay.
	DecisionExclude NodeDecision = "Exclude"
	// DecisionEvict: pods of gangs there are replaced.
	DecisionEvict NodeDecision = "Evict"
	// DecisionHold: the node should be evicted, and the outage budget does not allow it now; the message has the reason.
	DecisionHold NodeDecision = "Hold"
)

// NodeOutage is the controller's decision about a node; it stands until the node is healthy again.
type NodeOutage struct {
	Decision NodeDecision `json:"decision"`
	// Cause is the verdict's cause, CauseNodeUnreachable or CauseEvictedByHand.
	Cause string `json:"cause"`
	// Reason is what a node on hold waits for: ClusterBudget, DomainBudget or Breaker.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is when this decision was first made.
	Since metav1.MicroTime `json:"since"`
	// Dead: the node did not renew its lease and no agent on it reported in time, so that no process there can be reached.
	Dead bool `json:"dead,omitempty"`
	// Idle: no pod of a gang was there while this decision stood, so it does not count against the outage budget.
	Idle bool `json:"idle,omitempty"`
	// Pod is the UID of the only pod that DecisionEvict replaces; empty: it replaces all pods of gangs on the node.
	Pod string `json:"pod,omitempty"`
	// Requested: a user's request (AnnotationEvict) is in force, whatever the cause.
	Requested bool `json:"requested,omitempty"`
}

// NodeEviction is a user's request: pods of gangs on the node are replaced as planned, and no new pod is placed there until it ends.
type NodeEviction struct {
	// By is the user, as the API server named it to the client that wrote the request.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	// At is when the request was made, Until when it ends by itself, both by the client's clock.
	At    metav1.MicroTime `json:"at"`
	Until metav1.MicroTime `json:"until"`
	// Now: the outage budget is not asked.
	Now bool `json:"now,omitempty"`
	// Pod is the only pod that is replaced; null: all pods of gangs on the node.
	Pod *NodeEvictionPod `json:"pod,omitempty"`
}

// NodeEvictionPod names a pod.
type NodeEvictionPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// NodeSuspicion is the word of one gang that a node is at fault: no new pod of a gang is placed there until it ends.
type NodeSuspicion struct {
	Namespace string `json:"namespace"`
	Gang      string `json:"gang"`
	// Cause is why the gang replaced its pod on the node, Message the evidence.
	Cause   string `json:"cause"`
	Message string `json:"message,omitempty"`
	// At is when the gang suspected the node, Until when the exclusion ends.
	At    metav1.MicroTime `json:"at"`
	Until metav1.MicroTime `json:"until"`
	// Proven: a node check found it.
	Proven bool `json:"proven,omitempty"`
}

// MaxSuspicions bounds the entries of AnnotationSuspicions: one per gang, the newest.
const MaxSuspicions = 16

// NodePass is a node check of one gang that all its pods on the node passed.
type NodePass struct {
	Namespace string           `json:"namespace"`
	Gang      string           `json:"gang"`
	At        metav1.MicroTime `json:"at"`
	// Devices is the number of ranks that were tried there with a device. A pass of fewer than the node has GPUs is none of the node.
	Devices int32 `json:"devices,omitempty"`
	// Model is the type of the devices, Alone the operations per second of the slowest pod by itself, Pair the bytes per second of the
	// slowest pod with its fastest partner of the same type; absent: not measured.
	Model string  `json:"model,omitempty"`
	Alone float64 `json:"alone,omitempty"`
	Pair  float64 `json:"pair,omitempty"`
}

// MaxPasses bounds the entries of AnnotationPasses: one per gang, the newest.
const MaxPasses = 8

// CauseNodeSuspected: gangs suspect the node (AnnotationSuspicions).
const CauseNodeSuspected = "NodeSuspected"

// CauseEvictedByHand: a user moves pods off the node by AnnotationEvict.
const CauseEvictedByHand = "EvictedByHand"

// CauseGPUsReleased: the daemon has released the GPUs for a repair. It is the condition's reason even where another cause is worse.
const CauseGPUsReleased = "GPUsReleased"

// CauseNodeUnreachable: a node's lease is not renewed.
const CauseNodeUnreachable = "NodeUnreachable"

// CauseNodeGone: the Node was deleted before its pods had ended.
const CauseNodeGone = "NodeGone"
