package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/settings"
)

// ofVolcano says for each key that asks Holdfast's scheduler for a place, by which field Volcano is asked for the same.
var ofVolcano = map[string]string{
	v1alpha1.AnnotationTopologyRequired:  onJob + `: "hard" and ` + handover.TierKey,
	v1alpha1.AnnotationTopologyPreferred: onJob + `: "soft" and ` + handover.TierKey,
	v1alpha1.AnnotationSliceLevel:        subGroups,
	v1alpha1.AnnotationSliceSize:         subGroups,
	v1alpha1.AnnotationSliceShape:        subGroups,
	v1alpha1.AnnotationBlockSize:         subGroups,
	v1alpha1.AnnotationSpares:            "Volcano keeps room for a queue, by its spec.guarantee, and for no job",
	v1alpha1.AnnotationWholeNodes:        "request all devices of a node, or write spec.affinity.podAntiAffinity on the pod template",
	v1alpha1.AnnotationProvisioningClass: "no ProvisioningRequest is made for pods that Volcano places, and an autoscaler adds nodes for them one " +
		"by one",
}

// onJob begins what is written on the object itself.
const onJob = "write " + handover.ModeKey

// subGroups is how Volcano is asked for slices.
const subGroups = "create a PodGroup with spec.subGroupPolicy, and name it by " + handover.GroupKey + " on the pod template"

// foreign says whether a scheduler is not Holdfast's own.
func foreign(scheduler string) bool {
	return scheduler != "" && scheduler != corev1.DefaultSchedulerName && scheduler != v1alpha1.SchedulerName
}

// ofVolcanoJob has the fields of a Volcano Job, whose PodGroup Volcano's own controller makes.
var ofVolcanoJob = map[string]string{
	v1alpha1.AnnotationTopologyRequired:  `write spec.networkTopology with mode "hard"`,
	v1alpha1.AnnotationTopologyPreferred: `write spec.networkTopology with mode "soft"`,
	v1alpha1.AnnotationSliceLevel:        noSlices,
	v1alpha1.AnnotationSliceSize:         noSlices,
	v1alpha1.AnnotationSliceShape:        noSlices,
	v1alpha1.AnnotationBlockSize:         noSlices,
}

const noSlices = "spec.networkTopology keeps the pods of the Job together, and there is nothing for parts of it that holdfast supports"

// volcanosField says by which field Volcano is asked for what a key asks Holdfast's scheduler for.
func (o *subject) volcanosField(key string) string {
	if text, is := ofVolcanoJob[key]; is && isVolcano(o.kind) {
		return text
	}
	text := ofVolcano[key]
	if strings.HasPrefix(text, onJob) {
		text += " on the " + o.title()
	}
	return text
}

// checkScheduler looks at what an object asks for whose pods another scheduler places: what only Holdfast's does is refused where it
// is known how that scheduler is asked, else people are warned.
func (o *subject) checkScheduler() (errs field.ErrorList, warnings []string) {
	if len(o.roles) == 0 {
		return nil, nil
	}
	r := o.roles[0]
	for _, other := range o.roles[1:] {
		if own(other.Scheduler) != own(r.Scheduler) {
			errs = append(errs, field.Invalid(other.SchedulerPath, other.Scheduler,
				fmt.Sprintf("is not that of %s (%q), and one scheduler places all pods of a gang: write the same in both", r.SchedulerPath, r.Scheduler)))
		}
	}
	if len(errs) > 0 || !foreign(r.Scheduler) {
		return errs, nil
	}
	without := fmt.Sprintf("remove the key, or remove %s to have Holdfast's scheduler place the pods", r.SchedulerPath)
	if isVolcano(o.kind) {
		without = fmt.Sprintf("remove the key, or write %s: %s to have Holdfast's scheduler place the pods", r.SchedulerPath, v1alpha1.SchedulerName)
	}
	var unused []string
	for _, key := range slices.Sorted(maps.Keys(ofVolcano)) {
		value, is := "", false
		if o.batch() {
			value, is = r.Pod.Annotations[key]
		}
		if !is {
			value, is = o.obj.GetAnnotations()[key]
		}
		switch {
		case !is || value == "false" || value == "0": // which ask for nothing
		case key == v1alpha1.AnnotationProvisioningClass && !o.batch(): // which checkObject refuses
		case r.Scheduler == handover.Scheduler:
			errs = append(errs, field.Invalid(o.keyPath(r, key), value, fmt.Sprintf("is for Holdfast's scheduler, and Volcano places the pods: %s; %s", o.volcanosField(key), without)))
		default:
			unused = append(unused, key)
		}
	}
	if r.Scheduler == handover.Scheduler {
		return errs, o.volcanoWarnings()
	}
	warning := fmt.Sprintf("%s: %s places the pods: whether all are placed together or none is up to it", r.SchedulerPath, r.Scheduler)
	if len(unused) > 0 {
		warning += fmt.Sprintf("; unless it runs Holdfast's plugin these have no effect: %s", strings.Join(unused, ", "))
	}
	return nil, []string{warning}
}

// own is a scheduler's name, and that of Holdfast's where pods get it.
func own(scheduler string) string {
	if foreign(scheduler) {
		return scheduler
	}
	return v1alpha1.SchedulerName
}

// volcanoWarnings says which settings of an object that Volcano places have no effect.
func (o *subject) volcanoWarnings() (warnings []string) {
	if o.s.RunTime > 0 {
		warnings = append(warnings, fmt.Sprintf("%s: %q has no effect: Volcano places the pods, and reserves no room", o.keyPaths(v1alpha1.AnnotationRunTime), o.s.RunTime))
	}
	if isVolcano(o.kind) {
		return warnings
	}
	members := strconv.Itoa(int(o.read.Members()))
	places := []settings.Annotated{{Path: settings.MetadataAnnotations, Values: o.obj.GetAnnotations()}}
	for _, r := range o.roles {
		if _, grouped := r.Pod.Annotations[handover.GroupKey]; grouped {
			return warnings
		}
		places = append(places, settings.Annotated{Path: r.annotations(), Values: r.Pod.Annotations})
	}
	for _, at := range places {
		if value, is := at.Values[handover.MinMemberKey]; is && value != members {
			warnings = append(warnings, fmt.Sprintf("%s: %q has no effect: the PodGroup that holdfast creates has minMember %s, because training needs all pods; remove the key",
				at.Path.Key(handover.MinMemberKey), value, members))
		}
	}
	return warnings
}

// stampVolcano puts on a template what the object itself asks of Volcano, which reads most of it on pods alone. The controller of a
// Volcano Job does that itself.
func (o *subject) stampVolcano(r *role) {
	if r.Scheduler != handover.Scheduler || isVolcano(o.kind) {
		return
	}
	for key, value := range o.obj.GetAnnotations() {
		if _, has := r.Pod.Annotations[key]; handover.Inherited(key) && !has {
			r.Pod.Annotations = setKey(r.Pod.Annotations, key, value)
		}
	}
}
