package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

// rewrites reports whether a change is admitted as a new object is: that of a batch Job that waits, whose template may change.
func (o *subject) rewrites(was *subject) bool {
	return o.batch() && !o.isChild() && neverStarted(was.obj) && neverStarted(o.obj)
}

// checkUpdate checks a change of an existing object. Its pods keep the settings that it was created with, so a change of Holdfast's keys
// returns a warning with a remedy.
func (o *subject) checkUpdate(was *subject) Outcome[*unstructured.Unstructured] {
	switch {
	case o.batch() && o.isChild():
		return o.checkChildUpdate(was)
	case o.batch():
		return o.checkBatchUpdate(was)
	case o.obj.GetDeletionTimestamp() != nil:
		return Outcome[*unstructured.Unstructured]{Object: o.obj}
	}
	_, admitted := was.admitted()
	changed := changedKeys(was.obj.GetAnnotations(), o.obj.GetAnnotations())
	errs := added(was.misplaced(), o.misplaced())
	for _, r := range o.roles {
		written, refused := r.restore(was.role(r.Name))
		errs = append(errs, refused...)
		for _, at := range written {
			if changed = append(changed, at.String()); !admitted {
				errs = append(errs, field.Forbidden(at, o.elsewhere()))
			}
		}
	}
	if admitted {
		errs = append(errs, added(was.unread, o.unread)...)
		errs = append(errs, was.checkPods(o)...)
	}
	errs = append(errs, o.checkChanged(changed, was)...)
	if len(errs) > 0 {
		return o.outcome(errs, nil)
	}
	out := o.outcome(nil, was.changedWarnings(changed, o.obj))
	if admitted { // its warnings are those of the creation
		o.kind.Admit(out.Object, kinds.Admission{Job: o.read, Old: was.obj})
	}
	return out
}

// added are the refusals that there were not before: what was so can still be changed otherwise.
func added(before, now field.ErrorList) (errs field.ErrorList) {
	for _, e := range now {
		if !slices.ContainsFunc(before, func(had *field.Error) bool { return had.Error() == e.Error() }) {
			errs = append(errs, e)
		}
	}
	return errs
}

// checkBatchUpdate checks a change of a batch Job, whose template cannot change once it has started.
func (o *subject) checkBatchUpdate(was *subject) Outcome[*unstructured.Unstructured] {
	out := Outcome[*unstructured.Unstructured]{Object: o.obj}
	admitted, wasAdmitted := o.admitted()
	pods := o.read.Members()
	if wasAdmitted && !admitted.Settings.Observe && pods != admitted.Members {
		out.Errors = append(out.Errors, field.Invalid(field.NewPath("spec", "parallelism"), pods,
			fmt.Sprintf("the gang was formed with %d pods and cannot change its size yet: %s", admitted.Members, o.again())))
	}
	grows := pods > was.read.Members() // one that was larger before there was a limit may end
	if wasAdmitted && admitted.Settings.Observe && grows {
		out.Errors = append(out.Errors, kinds.CheckSize(pods, field.NewPath("spec", "parallelism"), o.again()+" without "+v1alpha1.AnnotationEnabled)...)
	}
	changed := changedKeys(was.obj.GetAnnotations(), o.obj.GetAnnotations())
	out.Errors = append(out.Errors, o.checkChanged(changed, was)...)
	if len(out.Errors) == 0 {
		out.Warnings = o.changedWarnings(changed, o.obj)
	}
	return out
}

// checkChildUpdate checks a change of a batch Job of a JobSet. Its pods are members of the JobSet's gang: their number, their places in it
// and the keys of ours on their template stay as they were.
func (o *subject) checkChildUpdate(was *subject) Outcome[*unstructured.Unstructured] {
	errs := o.checkChild()
	_, member := was.admitted()
	for _, r := range o.roles {
		had := was.role(r.Name)
		written, refused := r.restore(had)
		errs = append(errs, refused...)
		for _, at := range written {
			errs = append(errs, field.Forbidden(at, "has no effect on a Job of a JobSet: annotate the JobSet"))
		}
		if !member {
			continue
		}
		errs = append(errs, kinds.CheckPlaces(&had.Pod, &r.Pod)...)
		if r.Each != had.Each {
			errs = append(errs, field.Invalid(r.Count, r.Each, fmt.Sprintf(
				"the gang of the JobSet was formed with %d pods of this Job and cannot change its size yet: delete the JobSet and create it again", had.Each)))
		}
	}
	return o.outcome(errs, nil)
}

// role is the role of that name; nil: there is none.
func (o *subject) role(name string) *role {
	for _, r := range o.roles {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// admitted reads an object that was opted in when it was created; ok is false for any other.
func (o *subject) admitted() (j settings.Job, ok bool) {
	if len(o.roles) == 0 {
		return settings.Job{}, false
	}
	return settings.AdmittedTemplate(o.roles[0].Pod.Annotations)
}

// restore puts keys of ours back on a template as they were before a change, and says which were written. None of them has an effect once
// the object exists, and pods get those that they have from the template.
func (r *role) restore(was *role) (written []*field.Path, errs field.ErrorList) {
	var labels, annotations map[string]string
	if was != nil {
		labels, annotations = was.Pod.Labels, was.Pod.Annotations
	}
	at := r.Template.Child("metadata")
	errs = append(checkLabels(r.Pod.Labels, labels, at.Child("labels")), checkSystemKeys(r.Pod.Annotations, annotations, r.annotations())...)
	for _, key := range changedKeys(annotations, r.Pod.Annotations) {
		if _, kept := r.Pod.Annotations[key]; kept && !settings.IsSystemKey(key) {
			written = append(written, r.annotations().Key(key))
		}
	}
	r.Pod.Labels, r.Pod.Annotations = withOurs(r.Pod.Labels, labels), withOurs(r.Pod.Annotations, annotations)
	return written, errs
}

// withOurs is a map with the keys of ours that another one has, and with no other ones of ours.
func withOurs(m, from map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range m {
		if !strings.HasPrefix(key, v1alpha1.Prefix) {
			out[key] = value
		}
	}
	for _, key := range settings.OurKeys(from) {
		out[key] = from[key]
	}
	return out
}

// checkPods refuses a change after which an object has other pods.
func (o *subject) checkPods(now *subject) (errs field.ErrorList) {
	changed := func(r *role, had, has int32) {
		errs = append(errs, field.Forbidden(r.Count, fmt.Sprintf("the gang was formed with %d pods of role %q, which would have %d, and cannot change its size yet: %s",
			had, r.Name, has, o.again())))
	}
	for _, r := range now.roles {
		switch had := o.role(r.Name); {
		case had == nil:
			changed(r, 0, r.Pods())
		case had.Replicas != r.Replicas || had.Each != r.Each:
			changed(r, had.Pods(), r.Pods())
		default:
			errs = append(errs, r.checkImage(had, o.again())...)
		}
	}
	for _, r := range o.roles {
		if now.role(r.Name) == nil {
			changed(r, r.Pods(), 0)
		}
	}
	return errs
}

// checkImage refuses another image where the container's command was read from it.
func (r *role) checkImage(was *role, again string) field.ErrorList {
	admitted, _ := settings.AdmittedTemplate(was.Pod.Annotations)
	if was.Pod.Annotations[v1alpha1.AnnotationImageCommand] == "" {
		return nil
	}
	for i, c := range r.Pod.Spec.Containers {
		if c.Name != admitted.Settings.Container || len(c.Command) > 0 || i >= len(was.Pod.Spec.Containers) {
			continue
		}
		if had := was.Pod.Spec.Containers[i]; had.Name == c.Name && had.Image != c.Image {
			return field.ErrorList{field.Invalid(r.Template.Child("spec", "containers").Index(i).Child("image"), c.Image, fmt.Sprintf(
				"the container's command was read from image %s: write the command, or %s", had.Image, again))}
		}
	}
	return nil
}

// checkChanged refuses bad values among the object's own keys, where one of them changes.
func (o *subject) checkChanged(changed []string, was *subject) field.ErrorList {
	if len(changed) == 0 {
		return nil
	}
	places := []settings.Annotated{{Path: settings.MetadataAnnotations, Values: o.obj.GetAnnotations()}}
	for _, r := range o.roles {
		if o.batch() {
			places = append(places, settings.Annotated{Path: r.annotations(), Values: r.Pod.Annotations})
		}
	}
	_, errs := settings.ParseSettings(places...)
	if n := settings.RetrySizesOfJob(o.obj); n > 0 && slices.Contains(changed, v1alpha1.AnnotationRetrySizes) {
		if had, admitted := was.admitted(); admitted && had.Min == 0 {
			errs = append(errs, field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationRetrySizes), strconv.FormatInt(n, 10), fmt.Sprintf(
				"has no effect, because the %s was created without %s below all of its pods: remove the key", o.title(), v1alpha1.AnnotationMinPods)))
		}
	}
	had := map[string]string{v1alpha1.AnnotationMadeRoom: was.obj.GetAnnotations()[v1alpha1.AnnotationMadeRoom]}
	return append(errs, checkSystemKeys(o.obj.GetAnnotations(), had, settings.MetadataAnnotations)...)
}

// changedWarnings says what a change does not do. Pins and requests act at once, and so does the end of node checks.
func (o *subject) changedWarnings(changed []string, in *unstructured.Unstructured) []string {
	changed = slices.DeleteFunc(changed, func(key string) bool {
		return settings.IsLive(key) || key == v1alpha1.AnnotationMadeRoom || key == v1alpha1.AnnotationNodeCheck && settings.NodeCheckOff(o.obj)
	})
	if len(changed) == 0 {
		return nil
	}
	if _, admitted := o.admitted(); admitted {
		return []string{fmt.Sprintf("%s: the change has no effect, because pods keep the settings that %s %s was created with; to apply it %s",
			strings.Join(changed, ", "), o.title(), in.GetName(), o.again())}
	}
	if in.GetAnnotations()[v1alpha1.AnnotationEnabled] == "true" {
		return []string{fmt.Sprintf("%s: %s %s exists already and its pod template cannot change, so this opts in none of its pods; %s with the annotation in its file",
			v1alpha1.AnnotationEnabled, o.title(), in.GetName(), o.again())}
	}
	return nil
}

// neverStarted reports whether the Job is suspended and never had a pod, so that its template may change.
func neverStarted(job *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(job.Object, "spec", "suspend")
	start, _, _ := unstructured.NestedFieldNoCopy(job.Object, "status", "startTime")
	return suspended && start == nil
}

// changedKeys lists our keys whose values differ, sorted.
func changedKeys(old, in map[string]string) []string {
	both := map[string]string{}
	for _, m := range []map[string]string{old, in} {
		for k := range m {
			if strings.HasPrefix(k, v1alpha1.Prefix) && old[k] != in[k] {
				both[k] = ""
			}
		}
	}
	return slices.Sorted(maps.Keys(both))
}
