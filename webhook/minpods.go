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
		return o.withoutMinPods("has no effect without " + v1alpha1.AnnotationMinPods + ": write the least number of pods with which training goes on, or remove the key")
	}
	if why := o.noMinPods(); why != "" {
		return field.ErrorList{field.Invalid(at, strconv.Itoa(int(o.s.MinPods)), why)}
	}
	if o.s.MinPods == o.read.Members() {
		return o.withoutMinPods(fmt.Sprintf("has no effect, because %s is all %d pods: write a smaller number there, or remove the key", v1alpha1.AnnotationMinPods, o.s.MinPods))
	}
	return o.fitUnit()
}

// withoutMinPods refuses keys that act only on jobs that go on with fewer pods than they have.
func (o *subject) withoutMinPods(why string) (errs field.ErrorList) {
	if o.s.ShrinkAfter > 0 {
		errs = append(errs, field.Invalid(o.keyPaths(v1alpha1.AnnotationShrinkAfter), o.s.ShrinkAfter.String(), why))
	}
	if o.s.PodsUnit > 0 {
		errs = append(errs, field.Invalid(o.keyPaths(v1alpha1.AnnotationPodsUnit), strconv.Itoa(int(o.s.PodsUnit)), why))
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
	switch {
	case !o.batch():
		return fmt.Sprintf("acts on batch Jobs alone, and a %s runs with all of its pods: remove the key", o.title())
	case o.s.MinPods > o.read.Members():
		return fmt.Sprintf("is more than all pods of the job: spec.parallelism is %d", o.read.Members())
	case o.s.Topology.SliceSize > 1:
		return fmt.Sprintf("is for jobs whose domains may get other numbers of pods, and %s sets that number: remove one of the keys, or name blocks that stay together with %s", v1alpha1.AnnotationSliceSize, v1alpha1.AnnotationBlockSize)
	case foreign(o.roles[0].Scheduler):
		return fmt.Sprintf("needs Holdfast's scheduler, and %s places the pods: remove the key, or %s", o.roles[0].Scheduler, o.roles[0].SchedulerPath)
	}
	return ""
}

// unit returns how many consecutive pods train only together, and the key that says so.
func (o *subject) unit() (key string, pods int32) {
	if o.s.PodsUnit == 0 && o.s.Topology.Block > 1 {
		return v1alpha1.AnnotationBlockSize, int32(o.s.Topology.Block)
	}
	return v1alpha1.AnnotationPodsUnit, max(1, o.s.PodsUnit)
}

// fitUnit refuses blocks into which the pods, or the least number of them, cannot be divided, or that divide blocks which are placed
// together.
func (o *subject) fitUnit() field.ErrorList {
	key, unit := o.unit()
	refused := func(format string, args ...any) field.ErrorList {
		return field.ErrorList{field.Invalid(o.keyPaths(key), strconv.Itoa(int(unit)), fmt.Sprintf(format, args...))}
	}
	switch block := int32(o.s.Topology.Block); {
	case o.read.Members()%unit != 0:
		return refused("%d pods cannot be divided into blocks of %d: choose a number that divides spec.parallelism", o.read.Members(), unit)
	case o.s.MinPods%unit != 0:
		return refused("the job goes on with whole blocks of %d pods, and %s is %d: choose a number that divides it, or a multiple of %d there", unit, v1alpha1.AnnotationMinPods, o.s.MinPods, unit)
	case block > 1 && unit%block != 0:
		return refused("would divide blocks that are placed together (%s is %d): write a multiple of it, or remove the key", v1alpha1.AnnotationBlockSize, block)
	}
	return nil
}
