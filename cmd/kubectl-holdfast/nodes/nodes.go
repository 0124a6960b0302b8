// Package nodes shows the nodes of a cluster in a table: the verdict of each node's daemon, the controller's decision,
// and the remedy. The worst nodes come first. A node whose data cannot be read is shown as Unreadable, never as
// healthy. The same objects at the same time give the same text.
package nodes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Input is what was read. A list that could not be read is nil, with the reason in Notes.
type Input struct {
	Nodes []corev1.Node
	// Leases are those of kube-node-lease, Gangs those of all namespaces.
	Leases []coordinationv1.Lease
	Gangs  []v1alpha1.Gang
	// Notes describe what could not be read.
	Notes []string
}

// State is a node's state in one word.
type State string

// States, worst first.
const (
	// Dead: neither its lease nor an agent on it reported.
	Dead State = "Dead"
	// Evict: fatal verdict.
	Evict State = "Evict"
	// Unreachable: its lease is not renewed.
	Unreachable State = "Unreachable"
	// Exclude: no new pods are placed there.
	Exclude State = "Exclude"
	// Unreadable: an annotation of the node cannot be read.
	Unreadable State = "Unreadable"
	// Unknown: its daemon cannot judge at present.
	Unknown State = "Unknown"
	// Watch: an observation that users may want to know.
	Watch State = "Watch"
	// NoDriver: its daemon finds no NVIDIA driver, and nothing on the node requires one: it has no GPUs, or another maker's.
	NoDriver State = "NoDriver"
	// Unwatched: no daemon has ever written a verdict.
	Unwatched State = "Unwatched"
	// Healthy: its daemon reports no fault.
	Healthy State = "Healthy"
)

var order = []State{Dead, Evict, Unreachable, Exclude, Unreadable, Unknown, Watch, NoDriver, Unwatched, Healthy}

// leaseExpired is the age of a lease at which Kubernetes calls a node unreachable; a lease may have a longer duration.
const leaseExpired = 40 * time.Second

// Row is one node; -o json and -o yaml print it as it is.
type Row struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Health is the daemon's verdict, Outage the cluster's decision.
	Health *v1alpha1.NodeHealth `json:"health,omitempty"`
	Outage *v1alpha1.NodeOutage `json:"outage,omitempty"`
	// Request is a user's request to evict the node, while it is in force.
	Request *v1alpha1.NodeEviction `json:"request,omitempty"`
	// GangPods counts members of gangs that have not ended; nil: unknown.
	GangPods *int `json:"gangPods,omitempty"`
	// LeaseSeconds is the age of the node's lease; nil: unknown.
	LeaseSeconds *float64 `json:"leaseSeconds,omitempty"`
	// leaseHolds is the lease's duration.
	leaseHolds time.Duration
	// Cordoned: people (or other tools) made it unschedulable.
	Cordoned bool `json:"cordoned,omitempty"`
	// Problem describes an annotation of the node that cannot be read.
	Problem string `json:"problem,omitempty"`
}

// Report is the state of all nodes.
type Report struct {
	Nodes []Row     `json:"nodes"`
	Notes []string  `json:"notes,omitempty"`
	At    time.Time `json:"at"`
}

// Of returns the report on an input, as of now.
func Of(in Input, now time.Time) Report {
	leases := map[string]coordinationv1.LeaseSpec{}
	for i := range in.Leases {
		if in.Leases[i].Spec.RenewTime != nil {
			leases[in.Leases[i].Name] = in.Leases[i].Spec
		}
	}
	pods := gangPods(in.Gangs)
	r := Report{Nodes: []Row{}, Notes: in.Notes, At: now}
	for i := range in.Nodes {
		row := rowOf(&in.Nodes[i], now)
		if in.Gangs != nil {
			n := pods[row.Name]
			row.GangPods = &n
		}
		if lease, ok := leases[row.Name]; ok {
			age := max(0, now.Sub(lease.RenewTime.Time).Seconds())
			row.LeaseSeconds = &age
			row.leaseHolds = max(leaseExpired, time.Duration(ptr.Deref(lease.LeaseDurationSeconds, 0))*time.Second)
		}
		row.State = row.state(&in.Nodes[i])
		r.Nodes = append(r.Nodes, row)
	}
	slices.SortFunc(r.Nodes, func(a, b Row) int {
		return cmp.Or(slices.Index(order, a.State)-slices.Index(order, b.State), cmp.Compare(a.Name, b.Name))
	})
	return r
}

// States tells reports apart by what they say of nodes, whenever they were made.
func (r Report) States() string {
	var b strings.Builder
	for i := range r.Nodes {
		row := &r.Nodes[i]
		fmt.Fprintln(&b, row.Name, row.State, row.Cordoned, row.Problem, row.GangPods != nil && *row.GangPods > 0)
		if row.Health != nil {
			fmt.Fprintln(&b, row.Health.Cause, row.Health.Since)
		}
		if row.Outage != nil {
			fmt.Fprintln(&b, row.Outage.Decision, row.Outage.Since, row.Outage.Message)
		}
	}
	return b.String()
}

func rowOf(node *corev1.Node, now time.Time) Row {
	row := Row{Name: node.Name, Cordoned: node.Spec.Unschedulable}
	var errs [3]error
	row.Health, errs[0] = v1alpha1.NodeHealthOf(node)
	row.Outage, errs[1] = v1alpha1.NodeOutageOf(node)
	row.Request, errs[2] = v1alpha1.NodeEvictionOf(node)
	if row.Request != nil && !now.Before(row.Request.Until.Time) {
		row.Request = nil
	}
	for _, err := range errs {
		if err != nil {
			row.Problem = err.Error()
		}
	}
	return row
}

func (r Row) state(node *corev1.Node) State {
	own := Unwatched
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != v1alpha1.ConditionHealthy:
		case c.Status == corev1.ConditionTrue:
			own = Healthy
		default:
			own = Unknown
		}
	}
	if h := r.Health; h != nil && (own != Unknown || h.Action != v1alpha1.ActionNone) {
		own = map[v1alpha1.NodeAction]State{
			v1alpha1.ActionNone:    Healthy,
			v1alpha1.ActionWatch:   Watch,
			v1alpha1.ActionExclude: Exclude,
			v1alpha1.ActionEvict:   Evict,
		}[h.Action]
		if own == "" {
			own = Unreadable // an action of a newer version
		}
	}
	if own == Unknown && r.Health != nil && r.Health.Seen.GPUs == 0 && !HasNVIDIA(node) {
		own = NoDriver
	}
	silent := r.Outage != nil && r.Outage.Cause == v1alpha1.CauseNodeUnreachable ||
		r.LeaseSeconds != nil && *r.LeaseSeconds > r.leaseHolds.Seconds()
	switch {
	case r.Outage != nil && r.Outage.Dead:
		return Dead
	case own == Evict:
		return Evict
	case silent:
		return Unreachable
	case r.Problem != "":
		return Unreadable
	case r.Outage != nil && (own == Healthy || own == Unwatched || own == NoDriver || own == Watch):
		return Exclude // the verdict has ended, the decision not yet
	}
	return own
}

// HasNVIDIA reports whether the Node shows NVIDIA GPUs: by a resource or a label.
func HasNVIDIA(node *corev1.Node) bool {
	for name := range node.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/") {
			return true
		}
	}
	for key, value := range node.Labels { // set by the cloud, or with NVIDIA's PCI vendor number
		if strings.Contains(key+"="+value, "nvidia") || strings.HasPrefix(key, "feature.node.kubernetes.io/pci-") && strings.Contains(key, "10de") {
			return true
		}
	}
	return false
}

// gangPods counts, by node, members of gangs that have not ended.
func gangPods(gangs []v1alpha1.Gang) map[string]int {
	count := map[string]int{}
	for i := range gangs {
		s := &gangs[i].Status
		if s.Phase == v1alpha1.PhaseFinished || s.Phase == v1alpha1.PhaseFailed {
			continue
		}
		for _, m := range s.Members {
			if m.Node != "" {
				count[m.Node]++
			}
		}
	}
	return count
}
