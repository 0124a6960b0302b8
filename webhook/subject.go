package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

// subject is an object under admission, taken apart by its kind.
type subject struct {
	kind kinds.Kind
	// obj is what is written.
	obj *unstructured.Unstructured
	// read is what the kind read of it, unread why Holdfast cannot keep it alive.
	read   kinds.Job
	unread field.ErrorList
	// roles are those of read whose pods are members.
	roles []*role
	// s are its settings, unset why they cannot be read; prepare reads them.
	s     settings.Settings
	unset field.ErrorList
}

// role is a role whose pods train. The metadata of its template is changed in Pod, and written into the object by write.
type role struct {
	*kinds.Role
	// s are the settings of its pods: those of the object, with the container that its template names.
	s settings.Settings
	t *training
}

func isBatch(kind kinds.Kind) bool { return kind == kinds.Kind(kinds.BatchJob{}) }

func isVolcano(kind kinds.Kind) bool { return kind == kinds.Kind(kinds.VolcanoJob{}) }

// takeApart reads a copy of an object.
func takeApart(kind kinds.Kind, in *unstructured.Unstructured) *subject {
	o := &subject{kind: kind, obj: in.DeepCopy()}
	o.read, o.unread = kind.Read(o.obj)
	for i := range o.read.Roles {
		if r := &o.read.Roles[i]; !r.Before {
			o.roles = append(o.roles, &role{Role: r})
		}
	}
	return o
}

// write puts the metadata of the templates into the object.
func (o *subject) write() {
	for _, r := range o.roles {
		r.WriteMetadata(o.obj)
	}
}

func (o *subject) outcome(errs field.ErrorList, warnings []string) Outcome[*unstructured.Unstructured] {
	o.write()
	return Outcome[*unstructured.Unstructured]{Object: o.obj, Warnings: warnings, Errors: errs}
}

func (o *subject) batch() bool { return isBatch(o.kind) }

func (o *subject) title() string { return kinds.Title(o.kind) }

// again is the remedy for what counts at creation alone.
func (o *subject) again() string { return "delete the " + o.title() + " and create it again" }

// prepare removes what admission wrote into the object that this one is a copy of, or into was, the object before a change, so that it is
// written for this one, and reads the settings.
func (o *subject) prepare(was *subject) {
	switch {
	case o.isChild():
		return
	case was != nil:
		o.dropStamps(was)
	default:
		o.unstamp()
	}
	o.unset = o.readSettings()
}

// unstamp removes what admission wrote into a copy of an object.
func (o *subject) unstamp() {
	if own := o.obj.GetAnnotations(); own[v1alpha1.AnnotationMadeRoom] != "" { // of the Job that this one is a copy of
		delete(own, v1alpha1.AnnotationMadeRoom)
		o.obj.SetAnnotations(own)
	}
	for _, r := range o.roles {
		unstamp(&r.Pod)
	}
}

// dropStamps removes the stamps that the object had before a change.
func (o *subject) dropStamps(was *subject) {
	for _, r := range o.roles {
		had := was.role(r.Name)
		if had == nil {
			continue
		}
		maps.DeleteFunc(r.Pod.Annotations, func(key, value string) bool {
			stamped, is := had.Pod.Annotations[key]
			return settings.IsSystemKey(key) && is && stamped == value
		})
		if r.Pod.Labels[v1alpha1.LabelGang] == had.Pod.Labels[v1alpha1.LabelGang] {
			delete(r.Pod.Labels, v1alpha1.LabelGang)
		}
	}
}

// readSettings reads the settings. Those of a batch Job's template win over its own; the templates of other kinds may only name the
// container that trains.
func (o *subject) readSettings() field.ErrorList {
	own := settings.Annotated{Path: settings.MetadataAnnotations, Values: o.obj.GetAnnotations()}
	var errs field.ErrorList
	if o.batch() {
		places := []settings.Annotated{own}
		for _, r := range o.roles {
			places = append(places, settings.Annotated{Path: r.annotations(), Values: r.Pod.Annotations})
		}
		o.s, errs = settings.ParseSettings(places...)
	} else {
		o.s, errs = settings.ParseSettings(own)
	}
	for _, r := range o.roles {
		r.s = o.s
		if ofRole := settings.OfRole(r.Pod.Annotations); ofRole != nil && !o.batch() && len(errs) == 0 {
			r.s, errs = settings.ParseSettings(own, settings.Annotated{Path: r.annotations(), Values: ofRole})
		}
	}
	return errs
}

// checkKeys refuses keys of ours that are not known, or that are for Holdfast alone to write, and settings where none are read.
func (o *subject) checkKeys(facts Facts) field.ErrorList {
	errs := checkLabels(o.obj.GetLabels(), nil, metadataLabels)
	errs = append(errs, checkSystemKeys(o.obj.GetAnnotations(), nil, settings.MetadataAnnotations)...)
	for _, r := range o.roles {
		labels, annotations := o.stamps(r, facts)
		if !o.batch() {
			errs = append(errs, o.checkTemplateKeys(r)...)
		} else if err := settings.CheckPinsOfTemplate(r.Pod.Annotations); err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, checkLabels(r.Pod.Labels, labels, r.Template.Child("metadata", "labels"))...)
		errs = append(errs, checkSystemKeys(r.Pod.Annotations, annotations, r.annotations())...)
	}
	if !o.batch() {
		errs = append(errs, o.misplaced()...)
	}
	return errs
}

// checkTemplateKeys refuses settings on the template of one role of several: all pods of a gang have the same.
func (o *subject) checkTemplateKeys(r *role) (errs field.ErrorList) {
	own := o.obj.GetAnnotations()
	for _, key := range settings.OurKeys(r.Pod.Annotations) {
		value := r.Pod.Annotations[key]
		copied, is := own[key]
		switch {
		case settings.IsSystemKey(key), key == v1alpha1.AnnotationContainer, is && copied == value && !settings.IsLive(key):
		case key == v1alpha1.AnnotationEnabled && value == "false" && !o.s.Enabled:
		default:
			errs = append(errs, field.Forbidden(r.annotations().Key(key), o.elsewhere()))
		}
	}
	return errs
}

// elsewhere says where the kind's settings are read.
func (o *subject) elsewhere() string {
	return fmt.Sprintf("is read on the %s itself, for all its pods: write it in %s there", o.title(), settings.MetadataAnnotations)
}

// misplaced refuses keys of ours on all that is neither the object nor the template of a role that trains. Of an object that cannot be
// read nothing is known.
func (o *subject) misplaced() (errs field.ErrorList) {
	if len(o.read.Roles) == 0 {
		return nil
	}
	rest := o.obj.DeepCopy()
	for _, r := range o.roles {
		bare := *r.Role
		bare.Pod.Labels, bare.Pod.Annotations = nil, nil
		bare.WriteMetadata(rest)
	}
	eachMetadata(rest.Object["spec"], field.NewPath("spec"), func(at *field.Path, key string, value any) {
		if key != v1alpha1.AnnotationEnabled || value != "false" || o.s.Enabled {
			errs = append(errs, field.Forbidden(at.Key(key), o.elsewhere()))
		}
	})
	return errs
}

// eachMetadata calls found for each label and annotation of ours within a part of an object.
func eachMetadata(part any, at *field.Path, found func(at *field.Path, key string, value any)) {
	switch part := part.(type) {
	case []any:
		for i, item := range part {
			eachMetadata(item, at.Index(i), found)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(part)) {
			under := at.Child(name)
			values, is := part[name].(map[string]any)
			if last := name == "labels" || name == "annotations"; !is || !last {
				eachMetadata(part[name], under, found)
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if strings.HasPrefix(key, v1alpha1.Prefix) {
					found(under, key, values[key])
				}
			}
		}
	}
}

// stamps are the label and the annotations that admission itself writes on a role's template, besides copies of the object's.
func (o *subject) stamps(r *role, facts Facts) (labels, annotations map[string]string) {
	if !o.s.Enabled {
		return nil, nil
	}
	labels = map[string]string{v1alpha1.LabelGang: o.obj.GetName()}
	annotations = map[string]string{v1alpha1.AnnotationGangSize: strconv.Itoa(int(o.read.Members()))}
	if min := o.s.MinPods; min > 0 && min < o.read.Members() {
		annotations[v1alpha1.AnnotationGangMin] = strconv.Itoa(int(min))
		if _, unit := o.unit(); unit > 1 {
			annotations[v1alpha1.AnnotationGangUnit] = strconv.Itoa(int(unit))
		}
	}
	if !o.batch() {
		first, _ := o.read.Slot(kinds.Place{Role: r.Name})
		annotations[v1alpha1.AnnotationGangSlots] = slots{first: first, each: r.Each, pods: r.Pods()}.String()
	}
	if image := facts.Images[r.Name].Process; image != nil {
		annotations[v1alpha1.AnnotationImageCommand] = image.text()
	}
	return labels, annotations
}

// keyPath is the path of a setting's key: on the role's template, which takes precedence where it is read there, or on the object.
func (o *subject) keyPath(r *role, key string) *field.Path {
	if _, is := r.Pod.Annotations[key]; is && (o.batch() || key == v1alpha1.AnnotationContainer) {
		return r.annotations().Key(key)
	}
	return settings.MetadataAnnotations.Key(key)
}

// keyPaths is keyPath for a job's only template, or for the object.
func (o *subject) keyPaths(key string) *field.Path {
	if o.batch() && len(o.roles) > 0 {
		return o.keyPath(o.roles[0], key)
	}
	return settings.MetadataAnnotations.Key(key)
}

// annotations is the path of those of the role's template.
func (r *role) annotations() *field.Path { return r.Template.Child("metadata", "annotations") }

// hints are the annotations of the role's template, and the container that its kind takes for the one that trains.
func (r *role) hints() map[string]string {
	if r.Role.Container == "" || r.Pod.Annotations[defaultContainerKey] != "" {
		return r.Pod.Annotations
	}
	return map[string]string{defaultContainerKey: r.Role.Container}
}

// spec is a copy of the spec of the role's pods, with the variables that its kind's controller sets.
func (r *role) spec() *corev1.PodSpec {
	spec := r.Pod.Spec.DeepCopy()
	for i := range spec.Containers {
		spec.Containers[i].Env = append(spec.Containers[i].Env, r.Env...)
	}
	return spec
}
