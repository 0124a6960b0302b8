package v1alpha1

import corev1 "k8s.io/api/core/v1"

// How a preview is asked for: POST a PreviewRequest as JSON to PreviewPath of a scheduler, through the API
// server's proxy of PreviewService, with a token of PreviewServiceAccount for PreviewAudience in the header
// PreviewTokenHeader (the API server's proxy takes the header Authorization away). The answer is a
// PreviewResponse or a metav1.Status. See docs/designs/preview.md.
const (
	PreviewPath = "/holdfast/preview"
	// PreviewService is the name of the Service, in Namespace, as the proxy subresource wants it: scheme, name, port.
	PreviewService = "https:holdfast-scheduler-preview:preview"
	// PreviewServiceAccount, in Namespace, may do nothing but ask for previews.
	PreviewServiceAccount = "holdfast-preview"
	PreviewAudience       = "holdfast-preview"
	PreviewTokenHeader    = "Holdfast-Preview-Token"
	// ReasonNotLeading is the metav1.Status reason, with code 503, of a replica that does not schedule: try again, the proxy picks
	// replicas at random.
	ReasonNotLeading = "NotLeading"
	// MaxPreviewPods bounds PreviewRequest.Pods.
	MaxPreviewPods = 5000
	// MaxPreviewNames bounds PreviewExcluded.Nodes.
	MaxPreviewNames = 20
)

// PreviewRequest queries where the pods of one gang would be placed now, or why not. Nothing is reserved or written.
type PreviewRequest struct {
	// Pods are the members to be placed, as the API server would store them (a server-side dry run gives
	// them): with names, namespace, scheduler name, gang label, size annotation and, where their controller
	// writes one, an index. Members that exist already are left out: the scheduler knows them.
	Pods []corev1.Pod `json:"pods"`
}

// PreviewResponse is the scheduler's answer for its present view of the cluster.
type PreviewResponse struct {
	// Placement is what the Gang's status would say; Placed: the gang would be placed now.
	Placement PlacementStatus `json:"placement"`
	// Assignments say where each member would land, by slot; none where the gang would be refused.
	Assignments []PreviewAssignment `json:"assignments,omitempty"`
	// Nodes is how many nodes were looked at.
	Nodes int32 `json:"nodes"`
	// Excluded says which nodes take not even one member, by why; only for a refusal.
	Excluded []PreviewExcluded `json:"excluded,omitempty"`
}

// PreviewAssignment is one member on the node where it would land.
type PreviewAssignment struct {
	Slot int32  `json:"slot"`
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

// PreviewExcluded is a set of nodes that are out for one cause.
type PreviewExcluded struct {
	// Cause is as in PlacementStatus.Excluded.
	Cause string `json:"cause"`
	Count int32  `json:"count"`
	// Nodes are the first MaxPreviewNames by name.
	Nodes []string `json:"nodes,omitempty"`
}

// FabricPath, with the optional parameters level and most, is where it is got, by GET and with the same token, how broken up
// the fabric is, and which moves would make which domain whole again. The answer is a FabricResponse.
const (
	FabricPath = "/holdfast/fabric"
	// MaxFabricMoves bounds the parameter most: so many domains of a level are told.
	MaxFabricMoves = 100
)

// FabricResponse is the scheduler's present view of the fabric.
type FabricResponse struct {
	Nodes  int32         `json:"nodes"`
	Levels []FabricLevel `json:"levels"`
	// Stopped: looking for moves took too long and was stopped; there may be more.
	Stopped bool `json:"stopped,omitempty"`
}

// FabricLevel is one level of the fabric, the widest first.
type FabricLevel struct {
	Level string `json:"level"`
	// Domains is the number of domains, Whole the number of unused ones.
	Domains int32 `json:"domains"`
	Whole   int32 `json:"whole"`
	// Free is the number of unused nodes, Broken those of them in partly used domains, Largest the most in one domain.
	Free    int32 `json:"free"`
	Broken  int32 `json:"broken"`
	Largest int32 `json:"largest"`
	// Freed are domains that moves would make whole, those with the fewest pods to move first.
	Freed []FreedDomain `json:"freed,omitempty"`
}

// FreedDomain is a domain that would be unused after some pods moved. It uses only counts of resources: other reasons for which a
// node refuses a pod, and whether a gang can move in part, are not checked.
type FreedDomain struct {
	Domain string `json:"domain"`
	// Nodes is how many nodes the domain has, Used how many of them are used.
	Nodes int32 `json:"nodes"`
	Used  int32 `json:"used"`
	// Pods is how many pods would move.
	Pods  int32        `json:"pods"`
	Moves []FabricMove `json:"moves"`
}

// FabricMove is the move of the pods of one gang, or of one pod outside of gangs.
type FabricMove struct {
	// Unit is such as "gang team-a/train" or "pod team-a/web".
	Unit string `json:"unit"`
	// Pods are from where to where.
	Pods []PodMove `json:"pods"`
}

// PodMove is the node of a pod, and the one where it would be.
type PodMove struct {
	From string `json:"from"`
	To   string `json:"to"`
}
