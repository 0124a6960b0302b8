package webhook

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// fitMinPods takes the least number of pods from the launcher's range where the job has no key for it, and refuses what cannot be had.
func (o *subject) fitMinPods() field.ErrorList {
	at := o.keyPaths(v1alpha1.AnnotationMinPods)
	for _, r := range o.roles {
		switch {
		case r.t == nil || r.t.least == 0:
		case !o.batch():
			return field.ErrorList{field.Invalid(r.t.flagPath(r.t.leastFlag), r.t.leastFlag, fmt.Sprintf(
				"requests a varying number of pods, and a %s runs with all of its pods: give their number, or leave the flag out", o.title()))}
		case o.s.MinPods == 0:
			o.s.MinPods = r.t.least
		case o.s.MinPods != r.t.least:
			return field.ErrorList{field.Invalid(at, strconv.Itoa(int(o.s.MinPods)), fmt.Sprintf(
				"is not the least number of pods that the launcher requests (%s): write %d, or the same number there", r.t.leastFlag, r.t.least))}
		}
	}
	if o.s.MinPods == 0 {
		return o.withoutMinPods()
	}
	if why := o.noMinPods(); why != "" {
		return field.ErrorList{field.Invalid(at, strconv.Itoa(int(o.s.MinPods)), why)}
	}
	return nil
}

// withoutMinPods refuses keys that act only on jobs that go on with fewer pods than they have.
func (o *subject) withoutMinPods() (errs field.ErrorList) {
	const why = "has no effect without " + v1alpha1.AnnotationMinPods + ": write the least number of pods with which training goes on, or remove the key"
	if o.s.ShrinkAfter > 0 {
		errs = append(errs, field.Invalid(o.keyPaths(v1alpha1.AnnotationShrinkAfter), o.s.ShrinkAfter.String(), why))
	}
	if o.s.Grow != "" {
		errs = append(errs, field.Invalid(o.keyPaths(v1alpha1.AnnotationGrow), o.s.Grow, why))
	}
	if n := settings.RetrySizesOfJob(o.obj); n > 0 {
		errs = append(errs, field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationRetrySizes), strconv.FormatInt(n, 10), why))
	}
	return errs
}

// noMinPods returns why the job cannot go on with fewer pods than it has, and the remedy; "": it can.
func (o *subject) noMinPods() string {
	switch t := o.s.Topology; {
	case !o.batch():
		return fmt.Sprintf("acts on batch Jobs alone, and a %s runs with all of its pods: remove the key", o.title())
	case o.s.MinPods > o.read.Members():
		return fmt.Sprintf("is more than all pods of the job: spec.parallelism is %d", o.read.Members())
	case t.SliceSize > 1 || t.Block > 1:
		return fmt.Sprintf("is for jobs whose pods are placed one by one, and %s and %s group them: remove one of the keys", v1alpha1.AnnotationSliceSize, v1alpha1.AnnotationBlockSize)
	case foreign(o.roles[0].Scheduler):
		return fmt.Sprintf("needs Holdfast's scheduler, and %s places the pods: remove the key, or %s", o.roles[0].Scheduler, o.roles[0].SchedulerPath)
	}
	return ""
}
