package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/kinds"
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
	m := madeBy(pod)
	size := pod.Annotations[v1alpha1.AnnotationGangSize]
	if m.kind == nil && isCopy(pod) {
		return Outcome[*corev1.Pod]{Object: pod, Warnings: []string{asPlainPod(pod)}}
	}
	labels, annotations := m.systemKeys(pod, s)
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
	if m.kind == nil {
		return refuse(field.Invalid(enabled, "true", onlyJobs(pod)))
	}
	if size == "" {
		return Outcome[*corev1.Pod]{Object: pod, Warnings: []string{fmt.Sprintf(
			"%s: %s was not admitted by holdfast when it was created, so its pods stay as they are; delete the %s and create it again", enabled, m.object(), kinds.Title(m.kind))}}
	}
	if _, ok := gangSize(size); !ok {
		remedy := "remove the annotation and set parallelism of the Job"
		if !m.batch() {
			remedy = "remove the annotation and set the number of pods there"
		}
		return refuse(field.Invalid(settings.MetadataAnnotations.Key(v1alpha1.AnnotationGangSize), size, fmt.Sprintf(
			"must be from 1 to %d, and admission of the %s writes it: %s", v1alpha1.MaxMembers, kinds.Title(m.kind), remedy)))
	}
	if err := m.checkPlace(pod); err != nil {
		return refuse(err)
	}
	return inject(ctx, pod, cfg, s, m.stamp, m.place.Maker)
}

// systemKeys are the keys of Holdfast's own that a pod may have when it is created: what its job's admission stamped on the
// template, and where it is a member what pod admission itself wrote in an earlier call for it.
func (m made) systemKeys(pod *corev1.Pod, s settings.Settings) (labels, annotations map[string]string) {
	if m.kind == nil || !s.Enabled {
		return nil, nil
	}
	labels, annotations = map[string]string{}, map[string]string{}
	if pod.Annotations[v1alpha1.AnnotationGangSize] != "" && !s.Observe {
		labels, annotations = m.stamp.Keys()
		if !m.batch() {
			annotations[v1alpha1.AnnotationGangSlots] = pod.Annotations[v1alpha1.AnnotationGangSlots]
		}
	}
	for _, key := range []string{
		v1alpha1.AnnotationGangSize,
		v1alpha1.AnnotationGangMin,
		v1alpha1.AnnotationGangUnit,
		v1alpha1.AnnotationInjected,
		v1alpha1.AnnotationInjection,
		v1alpha1.AnnotationImageCommand,
		v1alpha1.AnnotationInstallResources,
	} {
		annotations[key] = pod.Annotations[key]
	}
	return labels, annotations
}

// supported are the kinds whose pods can be opted in.
const supported = "an Indexed batch Job, a Volcano Job, a JobSet or a PyTorchJob"

// onlyJobs says why a pod that no such object owns cannot be opted in, and names the kind of its owner.
func onlyJobs(pod *corev1.Pod) string {
	if ref := metav1.GetControllerOf(pod); ref != nil {
		return fmt.Sprintf("the pod is a part of %s %s (%s), and holdfast does not support that kind yet: "+
			"train in %s, and annotate that, or remove the annotation from the pod template there", ref.Kind, ref.Name, ref.APIVersion, supported)
	}
	return "only pods of " + supported + " can be opted in: annotate that, or remove the annotation here"
}

// inject adds to the pod all that its training container needs.
func inject(
	ctx context.Context, pod *corev1.Pod, cfg Config, s settings.Settings, stamp membership.Stamp, job types.UID,
) Outcome[*corev1.Pod] {
	out := Outcome[*corev1.Pod]{Object: pod}
	gang := stamp.Gang
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
	labels, annotations := stamp.Keys()
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
	t.addParts(cfg, d, s, job, again, installOverrides(pod.Annotations))
	if out.Errors = t.checkJobVariable(string(job)); len(out.Errors) > 0 {
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
