// Package v1alpha1 defines the arguments of Holdfast's plugin in a KubeSchedulerConfiguration. With an unknown field or
// an invalid value the scheduler does not start, and its error names the path of the field.
//
//	profiles:
//	  - schedulerName: holdfast-scheduler
//	    pluginConfig:
//	      - name: Holdfast
//	        args:
//	          apiVersion: scheduling.holdfast.dev/v1alpha1
//	          kind: HoldfastArgs
//	          initialPlacementTimeout: 2m
package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// GroupVersion is the API group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "scheduling.holdfast.dev", Version: "v1alpha1"}

// Kind is the kind of HoldfastArgs.
const Kind = "HoldfastArgs"

// HoldfastArgs are the plugin's arguments. All fields have defaults.
type HoldfastArgs struct {
	metav1.TypeMeta `json:",inline"`
	// PlanTimeout is how long members may take to follow a plan; then the gang is planned again. From 1s; default 30s.
	PlanTimeout metav1.Duration `json:"planTimeout,omitzero"`
	// InitialPlacementTimeout is how long a gang in initial placement may hold nodes while it lacks members, before its pods are rolled
	// back, and how long a reservation for a gang that lacks members stands. From 1s; default 1m.
	InitialPlacementTimeout metav1.Duration `json:"initialPlacementTimeout,omitzero"`
	// StartTimeout is how long the containers of a member may take to start while most of its gang run; then the node counts as having
	// rejected the pod. From 1s; default 5m.
	StartTimeout metav1.Duration `json:"startTimeout,omitzero"`
	// NominationTimeout is how long preempted room stays held for its gang after the victims' time to end is over. From 1s; default 1m.
	NominationTimeout metav1.Duration `json:"nominationTimeout,omitzero"`
	// ReservationAfter is how long the first gang in the queue is refused before the scheduler reserves room for it. Other pods may use
	// that room only if they end in time (backfill). From 1s; default 1m.
	ReservationAfter metav1.Duration `json:"reservationAfter,omitzero"`
	// EventTimeout is the longest that "Scheduled" events of members are deferred while gangs are being placed: writing an event costs the
	// API server as much as a binding. 0s: not deferred; default 30s.
	EventTimeout *metav1.Duration `json:"eventTimeout,omitempty"`
	// ParallelBindings is the most bindings of members at a time, from 1 to 1000; default 64.
	ParallelBindings *int32 `json:"parallelBindings,omitempty"`
	// TopologyLevels are the levels of the fabric, widest first; default: derived from the nodes' labels.
	TopologyLevels []TopologyLevel `json:"topologyLevels,omitempty"`
	// MarkUnschedulable: where a gang lacks room and more nodes would help, all members get PodScheduled=False, reason Unschedulable, which
	// makes autoscalers add nodes; default true. False: only the pod that is tried gets the condition.
	MarkUnschedulable *bool `json:"markUnschedulable,omitempty"`
	// AttendantNamespaces are namespaces whose pods, like those of DaemonSets, may share a node with a job that requests whole nodes;
	// default: kube-system.
	AttendantNamespaces []string `json:"attendantNamespaces,omitempty"`
}

// TopologyLevel is a level of the fabric.
type TopologyLevel struct {
	// Name is the level's name in annotations, such as "rack".
	Name string `json:"name"`
	// NodeLabel is the label whose value names a node's domain.
	NodeLabel string `json:"nodeLabel"`
}

// Default sets the default of each field that is not set.
func (a *HoldfastArgs) Default() {
	if a.PlanTimeout.Duration == 0 {
		a.PlanTimeout.Duration = 30 * time.Second
	}
	if a.InitialPlacementTimeout.Duration == 0 {
		a.InitialPlacementTimeout.Duration = time.Minute
	}
	for _, one := range []struct {
		value   *metav1.Duration
		usually time.Duration
	}{{&a.StartTimeout, 5 * time.Minute}, {&a.NominationTimeout, time.Minute}, {&a.ReservationAfter, time.Minute}} {
		if one.value.Duration == 0 {
			one.value.Duration = one.usually
		}
	}
	if a.EventTimeout == nil {
		a.EventTimeout = &metav1.Duration{Duration: 30 * time.Second}
	}
	if a.ParallelBindings == nil {
		a.ParallelBindings = new(int32(64))
	}
	if a.MarkUnschedulable == nil {
		a.MarkUnschedulable = new(true)
	}
	if a.AttendantNamespaces == nil {
		a.AttendantNamespaces = []string{metav1.NamespaceSystem}
	}
}

// mostLevels bounds TopologyLevels.
const mostLevels = 16

// longest bounds all durations: a longer one is taken for a typing error.
const longest = 24 * time.Hour

// Validate returns the errors in arguments whose defaults are set.
func (a *HoldfastArgs) Validate(path *field.Path) field.ErrorList {
	var all field.ErrorList
	if n := *a.ParallelBindings; n < 1 || n > 1000 {
		all = append(all, field.Invalid(path.Child("parallelBindings"), n, "must be from 1 to 1000"))
	}
	for _, one := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"planTimeout", a.PlanTimeout.Duration, time.Second},
		{"initialPlacementTimeout", a.InitialPlacementTimeout.Duration, time.Second},
		{"startTimeout", a.StartTimeout.Duration, time.Second},
		{"nominationTimeout", a.NominationTimeout.Duration, time.Second},
		{"reservationAfter", a.ReservationAfter.Duration, time.Second},
		{"eventTimeout", a.EventTimeout.Duration, 0},
	} {
		if one.value < one.least || one.value > longest {
			all = append(all, field.Invalid(path.Child(one.name), one.value.String(), "must be from "+one.least.String()+" to "+longest.String()))
		}
	}
	return append(all, a.validateLevels(path)...)
}

func (a *HoldfastArgs) validateLevels(path *field.Path) field.ErrorList {
	var all field.ErrorList
	if len(a.TopologyLevels) > mostLevels {
		all = append(all, field.TooMany(path.Child("topologyLevels"), len(a.TopologyLevels), mostLevels))
	}
	seen := map[string]bool{}
	for i, l := range a.TopologyLevels {
		at := path.Child("topologyLevels").Index(i)
		for _, one := range []struct{ name, value string }{{"name", l.Name}, {"nodeLabel", l.NodeLabel}} {
			if bad := validation.IsQualifiedName(one.value); len(bad) > 0 {
				all = append(all, field.Invalid(at.Child(one.name), one.value, bad[0]))
			} else if seen[one.value] {
				all = append(all, field.Duplicate(at.Child(one.name), one.value))
			}
			seen[one.value] = true
		}
	}
	for i, name := range a.AttendantNamespaces {
		if bad := validation.IsDNS1123Label(name); len(bad) > 0 {
			all = append(all, field.Invalid(path.Child("attendantNamespaces").Index(i), name, bad[0]))
		}
	}
	return all
}
