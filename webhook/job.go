package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

const (
	anew = "delete the Job and create it again"
)

var (
	metadataLabels  = field.NewPath("metadata", "labels")
	templatePath    = field.NewPath("spec", "template")
	templateLabels  = field.NewPath("spec", "template", "metadata", "labels")
	parallelismPath = field.NewPath("spec", "parallelism")
)

// MutateJob admits a Job that is created: it checks every key of Holdfast's and stamps the pod template of a Job that is opted in.
func MutateJob(ctx context.Context, in *batchv1.Job, facts Facts) Outcome[*batchv1.Job] {
	return mutateJob(ctx, in, nil, facts)
}

// mutateJob admits a Job whose template may be written: old is the Job before the change, nil for a new one.
func mutateJob(ctx context.Context, in, old *batchv1.Job, facts Facts) Outcome[*batchv1.Job] {
	job := in.DeepCopy()
	if old == nil {
		unstamp(&job.Spec.Template)
		delete(job.Annotations, v1alpha1.AnnotationMadeRoom) // of the Job that this one is a copy of
	}
	s, errs := settings.JobSettings(job)
	var stampedLabels, stampedAnnotations map[string]string
	if s.Enabled {
		stampedLabels = map[string]string{v1alpha1.LabelGang: job.Name}
		stampedAnnotations = map[string]string{v1alpha1.AnnotationGangSize: strconv.Itoa(int(parallelism(job)))}
		if facts.Image != nil {
			stampedAnnotations[v1alpha1.AnnotationImageCommand] = facts.Image.text()
		}
	}
	errs = append(errs, checkLabels(job.Labels, nil, metadataLabels)...)
	errs = append(errs, checkSystemKeys(job.Annotations, nil, settings.MetadataAnnotations)...)
	if err := settings.CheckPinsOfTemplate(job.Spec.Template.Annotations); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, checkLabels(job.Spec.Template.Labels, stampedLabels, templateLabels)...)
	errs = append(errs, checkSystemKeys(job.Spec.Template.Annotations, stampedAnnotations, settings.TemplateAnnotations)...)
	if s.Enabled && facts.MaxGangs > 0 && facts.Gangs >= facts.MaxGangs {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "namespace"), fmt.Sprintf("the namespace has %d gangs and may have %d: delete Jobs that are over, let their ttlSecondsAfterFinished do so, "+
			"or have holdfast-controller started with a higher --max-gangs-per-namespace", facts.Gangs, facts.MaxGangs)))
	}
	if len(errs) > 0 || !s.Enabled {
		return Outcome[*batchv1.Job]{Object: job, Errors: errs}
	}
	if s.Observe || facts.ObserveOnly {
		out := Outcome[*batchv1.Job]{Object: stampObserved(job), Errors: kinds.CheckSize(parallelism(job), parallelismPath, kinds.WithoutUs)}
		if !s.Observe {
			job.Spec.Template.Annotations = setKey(job.Spec.Template.Annotations, v1alpha1.AnnotationMode, v1alpha1.ModeObserve)
			out.Warnings = []string{"holdfast-controller runs with --observe-only: the pods of this Job are not injected, also after the flag is removed; to opt the Job in then " + anew}
		}
		return out
	}
	at := func(key string) *field.Path { return keyPath(job, key) }
	read, more := batchJob.Read(asObject(job))
	errs = append(errs, more...)
	if key, own := consumed(job.Spec.Template.Annotations); s.ProvisioningClass != "" && own {
		errs = append(errs, field.Invalid(at(v1alpha1.AnnotationProvisioningClass), s.ProvisioningClass,
			fmt.Sprintf("has no effect together with %s, which names the request that the pods consume; remove one of the two",
				settings.TemplateAnnotations.Key(key))))
	}
	errs = append(errs, checkSlices(s, parallelism(job), at)...)
	unplaced, elsewhere := checkScheduler(job, s)
	errs = append(errs, unplaced...)
	effective := effectiveSpec(ctx, job, s, facts)
	t, more := findTraining(ctx, effective, job.Spec.Template.Annotations, templatePath.Child("spec"), s, at)
	errs = append(errs, more...)
	if t != nil {
		t.count(s, facts.Devices)
		errs = append(errs, t.checkFresh(parallelism(job), s, facts.unread())...)
	}
	if len(errs) > 0 {
		return Outcome[*batchv1.Job]{Object: job, Errors: errs}
	}
	stamp(job, t.container().Name)
	if facts.Image != nil {
		job.Spec.Template.Annotations = setKey(job.Spec.Template.Annotations, v1alpha1.AnnotationImageCommand, facts.Image.text())
	}
	errs, unfit := fitLimits(ctx, job, s, facts)
	if len(errs) > 0 {
		return Outcome[*batchv1.Job]{Object: job, Errors: errs}
	}
	warnings := slices.Concat(elsewhere, t.memoryWarnings(s), t.launcherWarnings(), unfit, t.queueWarnings(job, s))
	read.Roles[0].Container = t.container().Name
	warnings = append(warnings, admitKind(job, kinds.Admission{Job: read, Old: asObject(old), Minor: facts.Minor})...)
	return Outcome[*batchv1.Job]{Object: job, Warnings: warnings}
}

// batchJob is the kind of the objects that are admitted here.
var batchJob kinds.BatchJob

// asObject is a Job as the kinds read it; nil: there is none.
func asObject(job *batchv1.Job) *unstructured.Unstructured {
	if job == nil {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(job)
	if err != nil {
		panic(err) // every Job converts
	}
	obj := &unstructured.Unstructured{Object: content}
	obj.SetGroupVersionKind(batchJob.GroupVersionKind())
	return obj
}

// admitKind writes on the Job what its kind needs.
func admitKind(job *batchv1.Job, a kinds.Admission) (warnings []string) {
	obj := asObject(job)
	warnings = batchJob.Admit(obj, a)
	admitted := &batchv1.Job{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, admitted); err != nil {
		panic(err) // it was a Job before
	}
	job.Spec.PodReplacementPolicy, job.Spec.PodFailurePolicy = admitted.Spec.PodReplacementPolicy, admitted.Spec.PodFailurePolicy
	return warnings
}

// effectiveSpec is the spec of the Job's pods with what the image starts in place of the command that is missing.
func effectiveSpec(ctx context.Context, job *batchv1.Job, s settings.Settings, facts Facts) *corev1.PodSpec {
	spec := &job.Spec.Template.Spec
	if facts.Image == nil {
		return spec
	}
	spec = spec.DeepCopy()
	if t, errs := findTraining(ctx, spec, job.Spec.Template.Annotations, templatePath, s, settings.TemplateAnnotations.Key); len(errs) == 0 &&
		len(t.container().Command) == 0 {
		facts.Image.into(t.container())
	}
	return spec
}

// stampObserved writes on the template of a Job that is only watched what tells so, and nothing that any
// part of Holdfast or of Kubernetes would act on.
func stampObserved(job *batchv1.Job) *batchv1.Job {
	tmpl := &job.Spec.Template
	for _, key := range slices.Sorted(maps.Keys(job.Annotations)) {
		if _, own := tmpl.Annotations[key]; settings.IsUserKey(key) && !own && !settings.IsPins(key) {
			tmpl.Annotations = setKey(tmpl.Annotations, key, job.Annotations[key])
		}
	}
	tmpl.Annotations = setKey(tmpl.Annotations, v1alpha1.AnnotationGangSize, strconv.Itoa(int(max(1, parallelism(job)))))
	return job
}

// stamp writes on the pod template what every pod of the job must carry. A Job whose name the API
// server has yet to generate gets its gang label on each pod, from the pod's owner.
func stamp(job *batchv1.Job, container string) {
	tmpl := &job.Spec.Template
	for _, key := range slices.Sorted(maps.Keys(job.Annotations)) {
		if _, own := tmpl.Annotations[key]; settings.IsUserKey(key) && !own && !settings.IsPins(key) {
			tmpl.Annotations = setKey(tmpl.Annotations, key, job.Annotations[key])
		}
	}
	stampVolcano(job)
	if container != "" { // without a name the Job is invalid, and the API server refuses it
		tmpl.Annotations = setKey(tmpl.Annotations, v1alpha1.AnnotationContainer, container)
	}
	tmpl.Annotations = setKey(tmpl.Annotations, v1alpha1.AnnotationGangSize, strconv.Itoa(int(parallelism(job))))
	if job.Name != "" {
		tmpl.Labels = setKey(tmpl.Labels, v1alpha1.LabelGang, job.Name)
	}
}

// checkSlices refuses slices and blocks that so many pods cannot be parted into; keyPath says where a key stands.
func checkSlices(s settings.Settings, pods int32, keyPath func(key string) *field.Path) field.ErrorList {
	for _, unit := range []struct {
		key string
		n   int
	}{{v1alpha1.AnnotationSliceSize, s.Topology.SliceSize}, {v1alpha1.AnnotationBlockSize, s.Topology.Block}} {
		if unit.n > 1 && int(pods)%unit.n != 0 {
			return field.ErrorList{field.Invalid(keyPath(unit.key), strconv.Itoa(unit.n), fmt.Sprintf("%d pods cannot be divided into groups of %d: choose a number that divides spec.parallelism", pods, unit.n))}
		}
	}
	return nil
}

// CheckJobUpdate checks a change of an existing Job. Its pods keep the settings that they were created with, so a change of
// Holdfast's keys returns a warning with a remedy.
func CheckJobUpdate(ctx context.Context, old, in *batchv1.Job, facts Facts) Outcome[*batchv1.Job] {
	if neverStarted(old) && neverStarted(in) {
		return mutateJob(ctx, withoutStamp(old, in), old, facts)
	}
	out := Outcome[*batchv1.Job]{Object: in}
	admitted, wasAdmitted := settings.AdmittedJob(in)
	if wasAdmitted && !admitted.Settings.Observe && parallelism(in) != admitted.Members {
		out.Errors = append(out.Errors, field.Invalid(field.NewPath("spec", "parallelism"), parallelism(in),
			fmt.Sprintf("the gang was formed with %d pods and cannot change its size yet: %s", admitted.Members, anew)))
	}
	if wasAdmitted && admitted.Settings.Observe && parallelism(in) > parallelism(old) { // one that was larger before there was a limit may end
		out.Errors = append(out.Errors, kinds.CheckSize(parallelism(in), parallelismPath, anew+" without "+v1alpha1.AnnotationEnabled)...)
	}
	changed := changedKeys(old.Annotations, in.Annotations)
	if len(changed) == 0 {
		return out
	}
	_, errs := settings.JobSettings(in)
	had := map[string]string{v1alpha1.AnnotationMadeRoom: old.Annotations[v1alpha1.AnnotationMadeRoom]}
	errs = append(errs, checkSystemKeys(in.Annotations, had, settings.MetadataAnnotations)...)
	out.Errors = append(out.Errors, errs...)
	if len(out.Errors) > 0 {
		return out
	}
	changed = slices.DeleteFunc(changed, func(key string) bool { return settings.IsPins(key) || key == v1alpha1.AnnotationMadeRoom })
	if len(changed) == 0 {
		return out // which works at once
	}
	if wasAdmitted {
		out.Warnings = append(out.Warnings, fmt.Sprintf("%s: the change has no effect, because pods keep the settings that Job %s was created with; to apply it %s",
			strings.Join(changed, ", "), in.Name, anew))
	} else if in.Annotations[v1alpha1.AnnotationEnabled] == "true" {
		out.Warnings = append(out.Warnings, fmt.Sprintf("%s: Job %s exists already and its pod template cannot change, so this opts in none of its pods; %s with the annotation in its file",
			v1alpha1.AnnotationEnabled, in.Name, anew))
	}
	return out
}

// withoutStamp returns the Job without its stamps, so that they are written again.
func withoutStamp(old, in *batchv1.Job) *batchv1.Job {
	job := in.DeepCopy()
	was, now := &old.Spec.Template, &job.Spec.Template
	for key, value := range was.Annotations {
		if settings.IsSystemKey(key) && now.Annotations[key] == value {
			delete(now.Annotations, key)
		}
	}
	if now.Labels[v1alpha1.LabelGang] == was.Labels[v1alpha1.LabelGang] {
		delete(now.Labels, v1alpha1.LabelGang)
	}
	return job
}

// neverStarted reports whether the Job is suspended and never had a pod, so that its template may change.
func neverStarted(job *batchv1.Job) bool {
	return job.Spec.Suspend != nil && *job.Spec.Suspend && job.Status.StartTime == nil
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

func parallelism(job *batchv1.Job) int32 {
	if job.Spec.Parallelism == nil {
		return 1
	}
	return *job.Spec.Parallelism
}

// keyPath is the path of a setting's key: on the template, which takes precedence, or on the Job.
func keyPath(job *batchv1.Job, key string) *field.Path {
	if _, ok := job.Spec.Template.Annotations[key]; ok {
		return settings.TemplateAnnotations.Key(key)
	}
	return settings.MetadataAnnotations.Key(key)
}
