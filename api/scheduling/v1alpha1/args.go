// Package v1alpha1 is the arguments of the scheduler plugin in a KubeSchedulerConfiguration. It promises that a field
// which is not listed here, or a value that makes no sense, is refused when the scheduler starts, with its path.
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
	// PlanTimeout is how long a plan may stand without all members having followed it before it is given up
	// and made anew, from 1s; default 30s.
	PlanTimeout metav1.Duration `json:"planTimeout,omitzero"`
	// InitialPlacementTimeout is how long a gang that never was whole may hold nodes while it lacks members, before
	// the nodes are taken back, and how long room may be reserved for a gang that lacks members; from 1s; default 1m.
	InitialPlacementTimeout metav1.Duration `json:"initialPlacementTimeout,omitzero"`
	// StartTimeout is how long the containers of a member may take to start while most of its gang run, before that
	// counts as a rejection by the node, from 1s; default 5m.
	StartTimeout metav1.Duration `json:"startTimeout,omitzero"`
	// NominationTimeout is how long room that others left for a gang is held for it beyond the time that they had to leave,
	// from 1s; default 1m.
	NominationTimeout metav1.Duration `json:"nominationTimeout,omitzero"`
	// ReservationAfter is how long the first gang in order is refused before room is reserved for it, into which others
	// go only if they are gone in time, from 1s; default 1m.
	ReservationAfter metav1.Duration `json:"reservationAfter,omitzero"`
	// EventTimeout is how long "Scheduled" events of members are held back while gangs are on their way to
	// their nodes: each is a write as dear as a binding. 0s: not at all; default 30s.
	EventTimeout *metav1.Duration `json:"eventTimeout,omitempty"`
	// ParallelBindings is how many bindings of members are under way at a time, from 1 to 1000; default 64.
	ParallelBindings *int32 `json:"parallelBindings,omitempty"`
	// TopologyLevels are the levels of the fabric, widest first; default: recognised from the labels of nodes.
	TopologyLevels []TopologyLevel `json:"topologyLevels,omitempty"`
	// MarkUnschedulable: all members of a gang that lacks room carry PodScheduled=False, Unschedulable, by which autoscalers
	// add nodes, and none of a gang that no node would help; default true. Else the one pod that is tried carries it.
	MarkUnschedulable *bool `json:"markUnschedulable,omitempty"`
	// AttendantNamespaces are namespaces whose pods, like those of DaemonSets, may share a node with a job that
	// wants whole nodes; default: kube-system.
	AttendantNamespaces []string `json:"attendantNamespaces,omitempty"`
}

// TopologyLevel is a level of the fabric.
type TopologyLevel struct {
	// Name is what people write in annotations, such as "rack".
	Name string `json:"name"`
	// NodeLabel is the label whose value names a node's domain.
	NodeLabel string `json:"nodeLabel"`
}

// Default sets what is not set.
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

// longest bounds all durations: more than that is a slip of the pen.
const longest = 24 * time.Hour

// Validate says what is wrong with arguments whose defaults are set.
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
