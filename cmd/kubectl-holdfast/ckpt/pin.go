package ckpt

import (
	"fmt"
	"slices"
	"strings"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/internal/protocol"
)

// Pinned is the Record of a pinned step.
const Pinned = "pinned"

// nameOf is the name of a step for users and in the annotation of the job's object.
func nameOf(s *v1alpha1.StoredStep) protocol.Mark {
	return protocol.Mark{Step: s.Step, Generation: s.Generation}
}

// recordedSteps are the steps that can be pinned, newest first.
func recordedSteps(g *v1alpha1.Gang) []protocol.Mark {
	var out []protocol.Mark
	whole, _ := recordOf(g).whole()
	for _, d := range whole {
		out = append(out, nameOf(d))
	}
	if g.Status.Run != nil && g.Status.Run.Launch != nil {
		for i := range g.Status.Run.Launch.Kept {
			out = append(out, nameOf(&g.Status.Run.Launch.Kept[i]))
		}
	}
	return out
}

// pinnedSteps are the pinned steps.
func pinnedSteps(g *v1alpha1.Gang) []protocol.Mark {
	var out []protocol.Mark
	if g.Status.Run != nil {
		for i := range g.Status.Run.Pinned {
			out = append(out, nameOf(&g.Status.Run.Pinned[i]))
		}
	}
	return out
}

// wished are the steps that the job requests to pin, whether or not the record has them.
func wished(g *v1alpha1.Gang) []protocol.Mark {
	var out []protocol.Mark
	if g.Spec.Storage != nil {
		for _, p := range g.Spec.Storage.Pins {
			out = append(out, protocol.Mark{Step: p.Step, Generation: p.Generation})
		}
	}
	return out
}

// notPinned are requested steps that the coordinator could not promise, or has not read yet.
func notPinned(g *v1alpha1.Gang) []string {
	var out []string
	for _, m := range wished(g) {
		if !IsPinned(g, m) {
			out = append(out, marksText([]protocol.Mark{m}))
		}
	}
	return out
}

// IsPinned reports whether the coordinator has recorded that a step stays.
func IsPinned(g *v1alpha1.Gang, m protocol.Mark) bool { return slices.Contains(pinnedSteps(g), m) }

// NextWish is the number of a new request: higher than the Job's and than all numbers in the status. A user who replaced the Job by its
// file may have removed its number.
func NextWish(g *v1alpha1.Gang, ofJob int64) int64 {
	newest := ofJob
	if g.Spec.Storage != nil {
		newest = max(newest, g.Spec.Storage.PinWish)
	}
	if g.Status.Run != nil {
		newest = max(newest, g.Status.Run.PinWish)
	}
	return newest + 1
}

// Answers reports whether the coordinator has read a request: the pins in the status are its answer to this request or a later one.
func Answers(g *v1alpha1.Gang, wish int64) bool {
	return g.Status.Run != nil && g.Status.Run.PinWish >= wish || wish == 0
}

// IsRecorded reports whether the record names a step of all ranks.
func IsRecorded(g *v1alpha1.Gang, m protocol.Mark) bool { return slices.Contains(recordedSteps(g), m) }

// Choices describes the steps that can be pinned.
func Choices(g *v1alpha1.Gang) string {
	if len(recordedSteps(g)) == 0 {
		return "no step of all ranks is recorded yet, so none can be pinned"
	}
	return "those that can be pinned are " + marksText(recordedSteps(g))
}

func marksText(marks []protocol.Mark) string {
	var texts []string
	for _, m := range marks {
		texts = append(texts, fmt.Sprintf("step %d of generation %d", m.Step, m.Generation))
	}
	return strings.Join(texts, ", ")
}

// Choose returns the step that the user means: among the recorded steps, or to unpin one, among the pinned steps.
func Choose(g *v1alpha1.Gang, step, generation int64, unpin bool) (protocol.Mark, error) {
	if g.Spec.Storage == nil {
		return protocol.Mark{}, fmt.Errorf("%s keeps no steps in storage: it has no annotation %s", page.JobName(g.Spec.JobRef), v1alpha1.AnnotationStorageClaim)
	}
	from := append(recordedSteps(g), pinnedSteps(g)...)
	refusal := fmt.Sprintf("step %d is not recorded as complete: %s", step, Choices(g))
	if unpin {
		from = append(pinnedSteps(g), wished(g)...)
		refusal = fmt.Sprintf("step %d is not pinned; pinned are %s", step, marksText(from))
		if len(from) == 0 {
			refusal = "no step of the job is pinned"
		}
	}
	var found []protocol.Mark
	for _, m := range from {
		if m.Step == step && (generation == 0 || m.Generation == generation) && !slices.Contains(found, m) {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return protocol.Mark{}, fmt.Errorf("%s", refusal)
	case 1:
		return found[0], nil
	}
	return protocol.Mark{}, fmt.Errorf("several generations have it: give --generation, one of %s", marksText(found))
}
