package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

// injectionVersion is the version of what injection makes of a pod.
const injectionVersion = "v1"

// defaultContainerKey tells kubectl logs and exec which container is meant.
const defaultContainerKey = "kubectl.kubernetes.io/default-container"

// The autoscalers that consolidate or scale down keep the node of a pod with these annotations.
const (
	doNotDisruptKey = "karpenter.sh/do-not-disrupt"
	safeToEvictKey  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// enoughGrace is the least time, in seconds, in which a terminating pod can be expected to copy anything.
const enoughGrace = 10

var specPath = field.NewPath("spec")

// MutatePod admits a pod that is created: it injects one that is opted in.
func MutatePod(ctx context.Context, in *corev1.Pod, cfg Config) Outcome[*corev1.Pod] {
	pod := in.DeepCopy()
	if membership.OnlyPlaced(pod) {
		errs := append(settings.CheckAsks(pod), checkLabels(pod.Labels, nil, metadataLabels)...)
		return Outcome[*corev1.Pod]{Object: pod, Errors: append(errs, checkSystemKeys(pod.Annotations, nil, settings.MetadataAnnotations)...)}
	}
	s, errs := settings.PodSettings(pod)
	owner := membership.OwningJob(pod)
	size := pod.Annotations[v1alpha1.AnnotationGangSize]
	if owner == nil && isCopy(pod) {
		return Outcome[*corev1.Pod]{Object: pod, Warnings: []string{asPlainPod(pod)}}
	}
	labels, annotations := systemKeys(pod, owner, s)
	errs = append(errs, checkLabels(pod.Labels, labels, metadataLabels)...)
	errs = append(errs, checkSystemKeys(pod.Annotations, annotations, settings.MetadataAnnotations)...)
	if len(errs) > 0 || !s.Enabled {
		return Outcome[*corev1.Pod]{Object: pod, Errors: errs}
	}
	if s.Observe { // a pod of an observed job is not touched
		return Outcome[*corev1.Pod]{Object: pod}
	}
	refuse := func(err *field.Error) Outcome[*corev1.Pod] {
		return Outcome[*corev1.Pod]{Object: pod, Errors: field.ErrorList{err}}
	}
	enabled := settings.MetadataAnnotations.Key(v1alpha1.AnnotationEnabled)
	if owner == nil {
		return refuse(field.Invalid(enabled, "true", onlyJobs(pod)))
	}
	if size == "" {
		return Outcome[*corev1.Pod]{Object: pod, Warnings: []string{fmt.Sprintf(
			"%s: Job %s was not admitted by holdfast when it was created, so its pods stay as they are; delete the Job and create it again", enabled, owner.Name)}}
	}
	if _, ok := gangSize(size); !ok {
		return refuse(field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationGangSize), size, fmt.Sprintf(
			"must be from 1 to %d, and admission of the Job writes it: remove the annotation and set parallelism of the Job", v1alpha1.MaxMembers)))
	}
	if err := checkIndex(pod); err != nil {
		return refuse(err)
	}
	return inject(ctx, pod, cfg, s, owner)
}

// systemKeys are the keys of Holdfast's own that a pod may have when it is created: what its Job's admission stamped on the
// template, and where it is a member what pod admission itself wrote in an earlier call for it.
func systemKeys(pod *corev1.Pod, owner *metav1.OwnerReference, s settings.Settings) (labels, annotations map[string]string) {
	if owner == nil || !s.Enabled {
		return nil, nil
	}
	labels, annotations = map[string]string{}, map[string]string{}
	if pod.Annotations[v1alpha1.AnnotationGangSize] != "" && !s.Observe {
		labels, annotations = stampOf(pod, owner).Keys()
	}
	for _, key := range []string{
		v1alpha1.AnnotationGangSize,
		v1alpha1.AnnotationInjected,
		v1alpha1.AnnotationInjection,
		v1alpha1.AnnotationImageCommand,
		v1alpha1.AnnotationInstallResources,
	} {
		annotations[key] = pod.Annotations[key]
	}
	return labels, annotations
}

// stampOf is the stamp of a pod that a Job made: all its pods have one role, and each its index as its slot.
func stampOf(pod *corev1.Pod, job *metav1.OwnerReference) membership.Stamp {
	return membership.Stamp{
		Gang: job.Name,
		Size: pod.Annotations[v1alpha1.AnnotationGangSize],
		Role: v1alpha1.RoleWorker,
		Slot: pod.Annotations[batchv1.JobCompletionIndexAnnotation],
	}
}

// checkIndex refuses a pod of a Job whose index is no slot of a gang of that size.
func checkIndex(pod *corev1.Pod) *field.Error {
	value := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
	size, _ := gangSize(pod.Annotations[v1alpha1.AnnotationGangSize])
	if n, err := strconv.Atoi(value); err == nil && n >= 0 && n < size && strconv.Itoa(n) == value {
		return nil
	}
	return field.Invalid(settings.MetadataAnnotations.Key(batchv1.JobCompletionIndexAnnotation), value,
		fmt.Sprintf("a pod of this gang has an index from 0 to %d, and the Job's controller writes which: create the Job, and leave its pods to it", size-1))
}

// onlyJobs says why a pod that no batch Job owns cannot be opted in, and names the kind of its owner.
func onlyJobs(pod *corev1.Pod) string {
	if ref := metav1.GetControllerOf(pod); ref != nil {
		return fmt.Sprintf("the pod is a part of %s %s (%s), and holdfast does not support that kind yet: "+
			"train in an Indexed batch Job and annotate that, or remove the annotation from the pod template there", ref.Kind, ref.Name, ref.APIVersion)
	}
	return "only pods of a batch Job (Indexed) can be opted in: annotate the Job, or remove the annotation here"
}

// inject adds to the pod all that its training container needs.
func inject(ctx context.Context, pod *corev1.Pod, cfg Config, s settings.Settings, owner *metav1.OwnerReference) Outcome[*corev1.Pod] {
	out := Outcome[*corev1.Pod]{Object: pod}
	gang := owner.Name
	useImage(ctx, pod, s)
	t, errs := findTraining(ctx, &pod.Spec, pod.Annotations, specPath, s, settings.MetadataAnnotations.Key)
	if len(errs) > 0 {
		out.Errors = errs
		return out
	}
	t.count(s, cfg.Devices)
	marker := markerOf(cfg, s, gang, t)
	d := t.demand(s) // before memory is added
	had, again := pod.Annotations[v1alpha1.AnnotationInjected]
	switch {
	case again && (had != marker || len(t.container().Command) == 0):
		out.Errors = field.ErrorList{field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationInjected), had, writtenByUs)}
		return out
	case !again:
		if out.Errors = t.checkFresh(0, s, nil); len(out.Errors) > 0 {
			return out
		}
		describe(pod, t, d, s, marker)
	}
	labels, annotations := stampOf(pod, owner).Keys()
	for key, value := range labels {
		pod.Labels = setKey(pod.Labels, key, value)
	}
	maps.Copy(pod.Annotations, annotations)
	defaults := map[string]string{defaultContainerKey: t.container().Name, doNotDisruptKey: "true", safeToEvictKey: "false"}
	if _, own := consumed(pod.Annotations); s.ProvisioningClass != "" && !own {
		defaults[v1alpha1.AnnotationConsumesRequest], defaults[v1alpha1.AnnotationRequestClass] = v1alpha1.RequestName(gang), s.ProvisioningClass
	}
	if handover.Is(pod) {
		maps.Copy(defaults, handover.Stamps(gang, annotations[v1alpha1.AnnotationGangRole]))
	}
	for key, value := range defaults {
		if _, set := pod.Annotations[key]; !set {
			pod.Annotations = setKey(pod.Annotations, key, value)
		}
	}
	if pod.Spec.SchedulerName == "" || pod.Spec.SchedulerName == corev1.DefaultSchedulerName {
		pod.Spec.SchedulerName = v1alpha1.SchedulerName
	}
	t.addParts(cfg, d, s, owner.UID, again, installOverrides(pod.Annotations))
	if out.Errors = t.checkJobVariable(string(owner.UID)); len(out.Errors) > 0 {
		return out
	}
	excuseVolumes(pod)
	return out
}

// consumed returns the annotation by which a pod consumes a ProvisioningRequest, and that request; false: it consumes none.
func consumed(annotations map[string]string) (key string, is bool) {
	for _, key := range []string{v1alpha1.AnnotationConsumesRequest, "cluster-autoscaler.kubernetes.io/consume-provisioning-request"} {
		if _, is := annotations[key]; is {
			return key, true
		}
	}
	return "", false
}

// describe adds the memory, which must happen once, and records what was done.
func describe(pod *corev1.Pod, t *training, d demand, s settings.Settings, marker string) {
	done := v1alpha1.Injection{StateBytes: s.StateBytes, Slots: s.Slots, Ranks: t.ranks, Standbys: s.Standbys, ShmBytes: d.Shm}
	if addMemory(t.container(), t.spec, d.total()) {
		done.MemoryAdded = d.total()
	} else {
		done.Notes = append(done.Notes, notReserved(t.container().Name, d))
	}
	switch grace, unknown := t.graceAfterHook(); {
	case s.StorageClaim == "":
	case unknown != "":
		done.Notes = append(done.Notes, unknown)
	case grace < enoughGrace:
		whole := graceSeconds(t.spec)
		done.Notes = append(done.Notes, fmt.Sprintf("terminationGracePeriodSeconds is %d%s: too short to copy the newest step to storage when a pod terminates; set it to %d or more",
			whole, hooksShare(whole-grace), enoughGrace+whole-grace))
	}
	text, err := json.Marshal(done)
	if err != nil {
		panic(err) // plain numbers and strings always encode
	}
	pod.Annotations = setKey(pod.Annotations, v1alpha1.AnnotationInjected, marker)
	pod.Annotations = setKey(pod.Annotations, v1alpha1.AnnotationInjection, string(text))
}

// markerOf is the value of AnnotationInjected: the version and a digest of all that decides the injection. It leaves out the
// certificate authority, which may be renewed between two calls for one pod, and what follows from the command, such as the ranks,
// because another webhook may have put its own command before it.
func markerOf(cfg Config, s settings.Settings, gang string, t *training) string {
	text, err := json.Marshal([]any{cfg.AgentImage, cfg.Coordinator, s, gang, t.container().Name})
	if err != nil {
		panic(err) // plain numbers and strings always encode
	}
	sum := sha256.Sum256(text)
	return injectionVersion + ":" + hex.EncodeToString(sum[:8])
}
