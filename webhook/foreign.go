package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/settings"
)

// ofVolcano says for each key that asks Holdfast's scheduler for a place, by which field Volcano is asked for the same.
var ofVolcano = map[string]string{
	v1alpha1.AnnotationTopologyRequired:  "write " + handover.ModeKey + `: "hard" and ` + handover.TierKey + " on the Job",
	v1alpha1.AnnotationTopologyPreferred: "write " + handover.ModeKey + `: "soft" and ` + handover.TierKey + " on the Job",
	v1alpha1.AnnotationSliceLevel:        subGroups,
	v1alpha1.AnnotationSliceSize:         subGroups,
	v1alpha1.AnnotationSliceShape:        subGroups,
	v1alpha1.AnnotationBlockSize:         subGroups,
	v1alpha1.AnnotationSpares:            "Volcano keeps room for a queue, by its spec.guarantee, and for no job",
	v1alpha1.AnnotationWholeNodes:        "request all devices of a node, or write spec.affinity.podAntiAffinity on the pod template",
	v1alpha1.AnnotationProvisioningClass: "no ProvisioningRequest is made for pods that Volcano places, and an autoscaler adds nodes for them one " +
		"by one",
}

// subGroups is how Volcano is asked for slices.
const subGroups = "create a PodGroup with spec.subGroupPolicy, and name it by " + handover.GroupKey + " on the pod template"

// foreign says whether a scheduler is not Holdfast's own.
func foreign(scheduler string) bool {
	return scheduler != "" && scheduler != corev1.DefaultSchedulerName && scheduler != v1alpha1.SchedulerName
}

// checkScheduler looks at what a Job asks for whose pods another scheduler places: what only Holdfast's does is refused where it
// is known how that scheduler is asked, else people are warned.
func checkScheduler(job *batchv1.Job, s settings.Settings) (errs field.ErrorList, warnings []string) {
	scheduler := job.Spec.Template.Spec.SchedulerName
	if !foreign(scheduler) {
		return nil, nil
	}
	path := templatePath.Child("spec", "schedulerName")
	without := fmt.Sprintf("remove the key, or remove %s to have Holdfast's scheduler place the pods", path)
	var unused []string
	for _, key := range slices.Sorted(maps.Keys(ofVolcano)) {
		at := keyPath(job, key)
		value, is := job.Spec.Template.Annotations[key]
		if !is {
			value, is = job.Annotations[key]
		}
		switch {
		case !is || value == "false" || value == "0": // which ask for nothing
		case scheduler == handover.Scheduler:
			errs = append(errs, field.Invalid(at, value, fmt.Sprintf("is for Holdfast's scheduler, and Volcano places the pods: %s; %s", ofVolcano[key], without)))
		default:
			unused = append(unused, key)
		}
	}
	if scheduler == handover.Scheduler {
		return errs, volcanoWarnings(job, s)
	}
	warning := fmt.Sprintf("%s: %s places the pods: whether all are placed together or none is up to it", path, scheduler)
	if len(unused) > 0 {
		warning += fmt.Sprintf("; unless it runs Holdfast's plugin these have no effect: %s", strings.Join(unused, ", "))
	}
	return nil, []string{warning}
}

// volcanoWarnings says which settings of a Job that Volcano places have no effect.
func volcanoWarnings(job *batchv1.Job, s settings.Settings) (warnings []string) {
	if s.RunTime > 0 {
		warnings = append(warnings, fmt.Sprintf("%s: %q has no effect: Volcano places the pods, and reserves no room", keyPath(job, v1alpha1.AnnotationRunTime), s.RunTime))
	}
	_, grouped := job.Spec.Template.Annotations[handover.GroupKey]
	for _, at := range []settings.Annotated{
		{Path: settings.MetadataAnnotations, Values: job.Annotations},
		{Path: settings.TemplateAnnotations, Values: job.Spec.Template.Annotations},
	} {
		if value, is := at.Values[handover.MinMemberKey]; is && !grouped && value != strconv.Itoa(int(parallelism(job))) {
			warnings = append(warnings, fmt.Sprintf("%s: %q has no effect: the PodGroup that holdfast creates has minMember %d, because training needs all pods; remove the key",
				at.Path.Key(handover.MinMemberKey), value, parallelism(job)))
		}
	}
	return warnings
}

// stampVolcano puts on the template what the Job itself asks of Volcano, which reads most of it on pods alone.
func stampVolcano(job *batchv1.Job) {
	tmpl := &job.Spec.Template
	if tmpl.Spec.SchedulerName != handover.Scheduler {
		return
	}
	for key, value := range job.Annotations {
		if _, own := tmpl.Annotations[key]; handover.Inherited(key) && !own {
			tmpl.Annotations = setKey(tmpl.Annotations, key, value)
		}
	}
}
