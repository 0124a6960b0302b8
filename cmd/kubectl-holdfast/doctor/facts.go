package doctor

import (
	"cmp"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Read is what was read, or why it could not be.
type Read[T any] struct {
	Value T `json:"value,omitempty"`
	// Unread is the reason; empty: Value was read, and no value means that there is none.
	Unread string `json:"unread,omitempty"`
}

// Facts are what was read of a cluster, with the rights of the user who asks.
type Facts struct {
	// At is when objects were read, by this machine's clock.
	At time.Time `json:"at"`
	// Leaving: the user wants to remove Holdfast.
	Leaving bool `json:"leaving,omitempty"`
	// Plugin is the version of this program.
	Plugin string `json:"plugin,omitempty"`
	// Namespace is where the user's jobs run.
	Namespace string `json:"namespace"`
	// Installed is how Holdfast is installed, if not as the manifests have it.
	Installed Names `json:"installed,omitzero"`
	// Server is the API server's version, such as v1.37.1.
	Server Read[string] `json:"server"`
	// Serves: the API server serves Gangs.
	Serves bool `json:"serves,omitempty"`

	Nodes      Read[[]corev1.Node]          `json:"nodes"`
	Leases     Read[[]coordinationv1.Lease] `json:"leases"`
	Gangs      Read[[]v1alpha1.Gang]        `json:"gangs"`
	Namespaces Read[[]corev1.Namespace]     `json:"namespaces"`

	// Deployments and DaemonSets are those of all namespaces.
	Deployments Read[[]appsv1.Deployment] `json:"deployments"`
	DaemonSets  Read[[]appsv1.DaemonSet]  `json:"daemonSets"`
	// NodePools are Karpenter's; none if the cluster does not serve them.
	NodePools Read[[]NodePool] `json:"nodePools"`

	// Leaders are the leases of namespace holdfast-system.
	Leaders  Read[[]coordinationv1.Lease]                                `json:"leaders"`
	Webhooks Read[*admissionregistrationv1.MutatingWebhookConfiguration] `json:"webhooks"`
	Services Read[[]corev1.Service]                                      `json:"services"`
	// Slices are the endpoints of Holdfast's Services, SystemSlices those of the cluster's DNS.
	Slices       Read[[]discoveryv1.EndpointSlice] `json:"slices"`
	SystemSlices Read[[]discoveryv1.EndpointSlice] `json:"systemSlices"`
	// OwnPolicies are those of namespace holdfast-system, Policies those of the user's.
	OwnPolicies Read[[]networkingv1.NetworkPolicy] `json:"ownPolicies"`
	Policies    Read[[]networkingv1.NetworkPolicy] `json:"policies"`

	Quotas Read[[]corev1.ResourceQuota] `json:"quotas"`
	Ranges Read[[]corev1.LimitRange]    `json:"ranges"`
	// Pods are those of the user's namespace; Pending are those of all namespaces that Holdfast's scheduler is to place; Replaced are
	// replaced pods that a disruption budget kept.
	Pods     Read[[]corev1.Pod] `json:"pods"`
	Pending  Read[[]corev1.Pod] `json:"pending"`
	Replaced Read[[]corev1.Pod] `json:"replaced"`

	// DryRun is the answer to a dry run of an annotated Job.
	DryRun DryRun `json:"dryRun"`
	// Trials are the small Jobs of --try; none: it was not given.
	Trials []Trial `json:"trials,omitempty"`
}

// NodePool is what the checks read of Karpenter's NodePool.
type NodePool struct {
	Name string `json:"name"`
	// Grace is its terminationGracePeriod; empty: none.
	Grace string `json:"grace,omitempty"`
}

// DryRun is the API server's answer to a dry run of the creation of an annotated Job.
type DryRun struct {
	// Admitted: the answer carries what Holdfast's admission writes.
	Admitted bool `json:"admitted,omitempty"`
	// Refused is the API server's error.
	Refused string `json:"refused,omitempty"`
	// NotAllowed: the user may not create Jobs.
	NotAllowed bool `json:"notAllowed,omitempty"`
}

// Networks of trials.
const (
	PodNetwork  = "pod"
	NodeNetwork = "node"
)

// Trial is a Job of one pod that was created to see whether pods of gangs start in the user's namespace.
type Trial struct {
	// Network is PodNetwork or NodeNetwork (hostNetwork).
	Network string `json:"network"`
	// Refused is why Job or pod could not be created.
	Refused string `json:"refused,omitempty"`
	// Ended: the coordinator started the pod's command, and it ended with 0.
	Ended bool `json:"ended,omitempty"`
	// Placed: the pod has a node. Pulled: the agent's image was there.
	Placed bool `json:"placed,omitempty"`
	Pulled bool `json:"pulled,omitempty"`
	// Waits is what the pod waited for at the end: the kubelet's reason and message, or the Gang's.
	Waits string `json:"waits,omitempty"`
	// Reached is the output of the pod's command; empty: it could not be read.
	Reached *Reached `json:"reached,omitempty"`
}

// Reached is what the command in a trial's pod found.
type Reached struct {
	// Resolved are the addresses of the coordinator's name; NotResolved is the error.
	Resolved    []string `json:"resolved,omitempty"`
	NotResolved string   `json:"notResolved,omitempty"`
}

// find returns the object of a namespace with a name; an object of the cluster has no namespace. nil: there is none.
func find[T any, P interface {
	*T
	metav1.Object
}](all []T, namespace, name string) P {
	for i := range all {
		if o := P(&all[i]); o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}
	return nil
}

// deployment finds a Deployment of Holdfast by its name in the manifests; nil: there is none.
func (f *Facts) deployment(base string) *appsv1.Deployment {
	return find(f.Deployments.Value, f.own(), f.named(base))
}

// nodeDaemonSet is the daemon's DaemonSet; nil: there is none.
func (f *Facts) nodeDaemonSet() *appsv1.DaemonSet {
	return find(f.DaemonSets.Value, f.nodes(), f.named(nodeName))
}

// ready counts the ready endpoints of a Service.
func ready(slices []discoveryv1.EndpointSlice, service string) int {
	n := 0
	for _, s := range slices {
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				n++
			}
		}
	}
	return n
}

// Names has the names of an installation; empty ones are those of the manifests.
type Names struct {
	Namespace     string `json:"namespace,omitempty"`
	NodeNamespace string `json:"nodeNamespace,omitempty"`
	// Prefix begins the names of all objects, after which those of the manifests follow.
	Prefix string `json:"prefix,omitempty"`
}

// own is the namespace of controller and scheduler, nodes that of the node daemon.
func (f *Facts) own() string   { return cmp.Or(f.Installed.Namespace, v1alpha1.Namespace) }
func (f *Facts) nodes() string { return cmp.Or(f.Installed.NodeNamespace, nodeName) }

// named returns an object's name in the installation, from that in the manifests.
func (f *Facts) named(base string) string { return f.Installed.Prefix + base }

// Names in the manifests.
const (
	controllerName     = "holdfast-controller"
	schedulerName      = "holdfast-scheduler"
	webhooksName       = "holdfast"
	doctorRole         = "holdfast-doctor"
	uninstallRole      = "holdfast-doctor-uninstall"
	nodeName           = "holdfast-node"
	webhookService     = "holdfast-webhook"
	coordinatorService = "holdfast-coordinator"
	webhookPort        = 9443
	coordinatorPort    = 7443
)
