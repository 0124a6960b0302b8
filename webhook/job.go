package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

var metadataLabels = field.NewPath("metadata", "labels")

// mutate admits a prepared object whose templates may be written: it checks every key of Holdfast's and stamps the pod templates of an
// object that is opted in. was is the object before the change, nil for a new one.
func (o *subject) mutate(ctx context.Context, was *subject, facts Facts) Outcome[*unstructured.Unstructured] {
	if o.isChild() {
		return Outcome[*unstructured.Unstructured]{Object: o.obj, Errors: o.checkChild()}
	}
	errs := slices.Clone(o.unset)
	errs = append(errs, o.checkKeys(facts)...)
	if o.s.Enabled && facts.MaxGangs > 0 && facts.Gangs >= facts.MaxGangs {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "namespace"), fmt.Sprintf("the namespace has %d gangs and may have %d: delete Jobs that are over, let their ttlSecondsAfterFinished do so, "+
			"or have holdfast-controller started with a higher --max-gangs-per-namespace", facts.Gangs, facts.MaxGangs)))
	}
	if holder := facts.Holder; o.s.Enabled && holder != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), o.obj.GetName(), fmt.Sprintf(
			"%s %s (%s) has the Gang of this name: choose another name, or delete that one first", holder.Kind, holder.Name, holder.APIVersion)))
	}
	if len(errs) > 0 || !o.s.Enabled {
		return o.outcome(errs, nil)
	}
	if o.s.Observe || facts.ObserveOnly {
		return o.observe()
	}
	errs = o.checkObject()
	unplaced, elsewhere := o.checkScheduler()
	errs = append(errs, unplaced...)
	for _, r := range o.roles {
		errs = append(errs, o.findTraining(ctx, r, facts)...)
	}
	errs = append(errs, o.checkMixed()...)
	errs = append(errs, o.fitMinPods()...)
	if len(errs) > 0 {
		return o.outcome(errs, nil)
	}
	o.stamp(facts)
	errs, unfit := o.fitLimits(ctx, facts)
	if len(errs) > 0 {
		return o.outcome(errs, nil)
	}
	out := o.outcome(nil, slices.Concat(elsewhere, o.trainingWarnings(), unfit, o.queueWarnings()))
	a := kinds.Admission{Job: o.read, Minor: facts.Minor}
	if was != nil {
		a.Old = was.obj
	}
	out.Warnings = append(out.Warnings, o.kind.Admit(o.obj, a)...)
	return out
}

// holder is the object of another kind that has the Gang of this name: the labels of both objects' pods would name one gang.
func (o *subject) holder(gangs []v1alpha1.Gang) *v1alpha1.JobReference {
	version, kind := o.kind.GroupVersionKind().ToAPIVersionAndKind()
	for i := range gangs {
		if ref := &gangs[i].Spec.JobRef; gangs[i].Name == o.obj.GetName() && (ref.Kind != kind || ref.APIVersion != version) {
			return ref
		}
	}
	return nil
}

// isChild reports whether the object is a batch Job of a JobSet, which is admitted in its stead.
func (o *subject) isChild() bool { return o.batch() && kinds.IsChild(o.obj) }

// checkChild refuses a batch Job whose pods would be taken for another object's.
func (o *subject) checkChild() (errs field.ErrorList) {
	for _, r := range o.roles {
		errs = append(errs, kinds.CheckChild(o.obj, &r.Pod)...)
	}
	return errs
}

// observe admits an object that is only watched: its template says so, and has nothing that any part of Holdfast or of Kubernetes
// would act on.
func (o *subject) observe() Outcome[*unstructured.Unstructured] {
	if !o.batch() {
		if !o.s.Observe {
			return o.outcome(nil, []string{fmt.Sprintf("holdfast-controller runs with --observe-only, and holdfast observes no %s: it stays as it is, also after the flag is removed; to opt it in then %s",
				o.title(), o.again())})
		}
		return o.outcome(field.ErrorList{field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationMode), v1alpha1.ModeObserve,
			fmt.Sprintf("acts on batch Jobs alone, and holdfast observes no %s: write %q, or %s", o.title(), v1alpha1.ModeAct, kinds.WithoutUs))}, nil)
	}
	var errs field.ErrorList
	var warnings []string
	for _, r := range o.roles {
		errs = append(errs, kinds.CheckSize(r.Each, r.Count, kinds.WithoutUs)...)
		o.copyKeys(r)
		r.Pod.Annotations = setKey(r.Pod.Annotations, v1alpha1.AnnotationGangSize, strconv.Itoa(int(max(1, r.Each))))
		if !o.s.Observe {
			r.Pod.Annotations = setKey(r.Pod.Annotations, v1alpha1.AnnotationMode, v1alpha1.ModeObserve)
			warnings = []string{"holdfast-controller runs with --observe-only: the pods of this Job are not injected, also after the flag is removed; to opt the Job in then " + o.again()}
		}
	}
	return o.outcome(errs, warnings)
}

// checkObject refuses what the kind, or the object as a whole, cannot have.
func (o *subject) checkObject() field.ErrorList {
	errs := slices.Clone(o.unread)
	class := o.s.ProvisioningClass
	if !o.batch() {
		if class != "" {
			errs = append(errs, field.Invalid(o.keyPaths(v1alpha1.AnnotationProvisioningClass), class,
				fmt.Sprintf("acts on batch Jobs alone, and no ProvisioningRequest is made for a %s: remove the key; an autoscaler adds nodes for its pods one by one", o.title())))
		}
		return append(errs, checkSlices(o.s, o.read.Members(), "the number of pods", o.keyPaths)...)
	}
	errs = append(errs, o.checkChild()...)
	for _, r := range o.roles {
		if key, own := consumed(r.Pod.Annotations); class != "" && own {
			errs = append(errs, field.Invalid(o.keyPaths(v1alpha1.AnnotationProvisioningClass), class,
				fmt.Sprintf("has no effect together with %s, which names the request that the pods consume; remove one of the two", r.annotations().Key(key))))
		}
	}
	return append(errs, checkSlices(o.s, o.read.Members(), "spec.parallelism", o.keyPaths)...)
}

// checkSlices refuses slices and blocks that so many pods cannot be parted into; keyPath says where a key stands.
func checkSlices(s settings.Settings, pods int32, count string, keyPath func(key string) *field.Path) field.ErrorList {
	for _, unit := range []struct {
		key string
		n   int
	}{{v1alpha1.AnnotationSliceSize, s.Topology.SliceSize}, {v1alpha1.AnnotationBlockSize, s.Topology.Block}} {
		if unit.n > 1 && int(pods)%unit.n != 0 {
			return field.ErrorList{field.Invalid(keyPath(unit.key), strconv.Itoa(unit.n), fmt.Sprintf("%d pods cannot be divided into groups of %d: choose a number that divides %s", pods, unit.n, count))}
		}
	}
	return nil
}

// findTraining finds the container of a role that trains, and refuses what prevents its injection.
func (o *subject) findTraining(ctx context.Context, r *role, facts Facts) field.ErrorList {
	image := facts.Images[r.Name]
	at := func(key string) *field.Path { return o.keyPath(r, key) }
	t, errs := findTraining(ctx, r.effectiveSpec(ctx, image), r.hints(), r.Template.Child("spec"), r.s, at)
	if t == nil {
		return errs
	}
	t.count(r.s, facts.Devices)
	r.t, r.Role.Container = t, t.container().Name
	return t.checkFresh(o.read.Members(), r.s, image.unread())
}

// trainingWarnings are those about the containers that train; the role is named where there are several.
func (o *subject) trainingWarnings() (warnings []string) {
	for _, r := range o.roles {
		for _, w := range r.t.memoryWarnings(r.s) {
			if len(o.roles) > 1 {
				w = r.Template.String() + ": " + w
			}
			warnings = append(warnings, w)
		}
	}
	for _, r := range o.roles {
		warnings = append(warnings, r.t.launcherWarnings()...)
	}
	return warnings
}

// stamp writes on the pod templates what every pod of the job must carry. Pods of an object whose name the API server has yet to
// generate get their gang label from what their controller writes.
func (o *subject) stamp(facts Facts) {
	for _, r := range o.roles {
		labels, annotations := o.stamps(r, facts)
		o.copyKeys(r)
		o.stampVolcano(r)
		if r.Role.Container != "" { // without a name the object is invalid, and the API server refuses it
			r.Pod.Annotations = setKey(r.Pod.Annotations, v1alpha1.AnnotationContainer, r.Role.Container)
		}
		for key, value := range annotations {
			r.Pod.Annotations = setKey(r.Pod.Annotations, key, value)
		}
		if o.obj.GetName() != "" {
			r.Pod.Labels = setKey(r.Pod.Labels, v1alpha1.LabelGang, labels[v1alpha1.LabelGang])
		}
	}
}

// copyKeys writes the settings of the object on a template that does not have them.
func (o *subject) copyKeys(r *role) {
	own := o.obj.GetAnnotations()
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if _, has := r.Pod.Annotations[key]; settings.IsUserKey(key) && !has && !settings.IsLive(key) {
			r.Pod.Annotations = setKey(r.Pod.Annotations, key, own[key])
		}
	}
}
