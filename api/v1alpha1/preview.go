package v1alpha1

import corev1 "k8s.io/api/core/v1"

// To get a preview, POST a PreviewRequest as JSON to PreviewPath of a scheduler, through the API server's proxy of PreviewService, with a
// token of PreviewServiceAccount for PreviewAudience in the header PreviewTokenHeader (the proxy removes the header Authorization). The
// response is a PreviewResponse or a metav1.Status. See docs/designs/preview.md.
const (
	PreviewPath = "/holdfast/preview"
	// PreviewService is the name of the Service, in Namespace, for the proxy subresource: scheme, name, port.
	PreviewService = "https:holdfast-scheduler-preview:preview"
	// PreviewServiceAccount, in Namespace, has no right but to query previews.
	PreviewServiceAccount = "holdfast-preview"
	PreviewAudience       = "holdfast-preview"
	PreviewTokenHeader    = "Holdfast-Preview-Token"
	// ReasonNotLeading is the metav1.Status reason, with code 503, of a replica that does not lead: retry, the proxy picks replicas at
	// random.
	ReasonNotLeading = "NotLeading"
	// MaxPreviewPods bounds PreviewRequest.Pods.
	MaxPreviewPods = 5000
	// MaxPreviewNames bounds PreviewExcluded.Nodes.
	MaxPreviewNames = 20
)

// PreviewRequest queries where the pods of one gang would be placed now. Nothing is reserved or written.
type PreviewRequest struct {
	// Pods are the members to be placed, as the API server would store them (a server-side dry run returns them): with names, namespace,
	// scheduler name, gang label, size annotation and, where their controller writes one, an index. Members that exist already are left
	// out: the scheduler knows them.
	Pods []corev1.Pod `json:"pods"`
}

// PreviewResponse is the scheduler's answer for its present view of the cluster.
type PreviewResponse struct {
	// Placement is what the scheduler would write into the Gang's status; Placed: the gang would be placed now.
	Placement PlacementStatus `json:"placement"`
	// Assignments are the node of each member, by slot; none where the gang would be refused.
	Assignments []PreviewAssignment `json:"assignments,omitempty"`
	// Nodes is the number of nodes considered.
	Nodes int32 `json:"nodes"`
	// Excluded lists, for a refusal only, the nodes that have no room for even one member, by cause.
	Excluded []PreviewExcluded `json:"excluded,omitempty"`
	// Losses is how a placed gang with a minimum would go on without one and without two of its nodes; none for other gangs.
	Losses []PreviewLoss `json:"losses,omitempty"`
}

// PreviewLoss is what the loss of nodes at which most of a gang's pods are would leave now.
type PreviewLoss struct {
	// Nodes are the lost nodes, by name.
	Nodes []string `json:"nodes"`
	// Lost is how many pods are on them, Replaced how many of these would get another node now.
	Lost     int32 `json:"lost"`
	Replaced int32 `json:"replaced"`
	// Pods is how many pods would then have a node, of blocks that all have one; Min is how many the gang needs.
	Pods int32 `json:"pods"`
	Min  int32 `json:"min"`
	// Idle is how many further pods would have a node, and wait for others of their block (GangSpec.PodsUnit).
	Idle int32 `json:"idle,omitempty"`
}

// PreviewAssignment is one member and the node where it would be placed.
type PreviewAssignment struct {
	Slot int32  `json:"slot"`
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

// PreviewExcluded are the nodes excluded for one cause.
type PreviewExcluded struct {
	// Cause is as in PlacementStatus.Excluded.
	Cause string `json:"cause"`
	Count int32  `json:"count"`
	// Nodes are the first MaxPreviewNames of them, by name.
	Nodes []string `json:"nodes,omitempty"`
}

// GET FabricPath, with the optional parameters level and most and with the same token, returns a FabricResponse: how fragmented the fabric
// is, and which moves of pods would free which domains.
const (
	FabricPath = "/holdfast/fabric"
	// MaxFabricMoves bounds the parameter most: the number of domains per level in a response.
	MaxFabricMoves = 100
)

// FabricResponse is the scheduler's present view of the fabric.
type FabricResponse struct {
	Nodes  int32         `json:"nodes"`
	Levels []FabricLevel `json:"levels"`
	// Stopped: the search for moves reached its time limit; there may be more.
	Stopped bool `json:"stopped,omitempty"`
}

// FabricLevel is one level of the fabric, the widest first.
type FabricLevel struct {
	Level string `json:"level"`
	// Domains is the number of domains, Whole the number of unused ones.
	Domains int32 `json:"domains"`
	Whole   int32 `json:"whole"`
	// Free is the number of unused nodes, Broken how many of them are in partly used domains, Largest the most in one domain.
	Free    int32 `json:"free"`
	Broken  int32 `json:"broken"`
	Largest int32 `json:"largest"`
	// Freed are the domains that moves would free, those with the fewest pods to move first.
	Freed []FreedDomain `json:"freed,omitempty"`
}

// FreedDomain is a domain that would be unused after some pods moved. It is computed from counts of resources only: other reasons for which
// a node refuses a pod, and whether a gang can move in part, are not checked.
type FreedDomain struct {
	Domain string `json:"domain"`
	// Nodes is the number of nodes in the domain, Used the number of used ones.
	Nodes int32 `json:"nodes"`
	Used  int32 `json:"used"`
	// Pods is how many pods would move.
	Pods  int32        `json:"pods"`
	Moves []FabricMove `json:"moves"`
}

// FabricMove is the move of all pods of one unit that are in the domain.
type FabricMove struct {
	// Unit is "gang team-a/train" or "pod team-a/web".
	Unit string `json:"unit"`
	// Pods are the moves of its pods.
	Pods []PodMove `json:"pods"`
}

// PodMove is a pod's present node and the node it would move to.
type PodMove struct {
	From string `json:"from"`
	To   string `json:"to"`
}
