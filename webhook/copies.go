package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/settings"
)

// Objects that users export and apply again, restore from backups or copy hold all that admission wrote into them.

// unstamp removes from a pod template of a new object what only admission writes there, so that it is written for this one. Values
// that admission never writes stay, and are refused.
func unstamp(template *corev1.PodTemplateSpec) {
	_, ofRole := parseSlots(template.Annotations[v1alpha1.AnnotationGangSlots])
	for key, value := range template.Annotations {
		copied := ofRole && settings.IsUserKey(key) && key != v1alpha1.AnnotationContainer // of the object's own, which alone is read
		if isStamp(key, value) || copied {
			delete(template.Annotations, key)
		}
	}
	if value := template.Labels[v1alpha1.LabelGang]; isStamp(v1alpha1.LabelGang, value) {
		delete(template.Labels, v1alpha1.LabelGang)
	}
}

// isStamp reports whether admission writes such a value under the key of some template.
func isStamp(key, value string) bool {
	switch key {
	case v1alpha1.LabelGang:
		return len(validation.IsDNS1123Subdomain(value)) == 0
	case v1alpha1.AnnotationGangSize, v1alpha1.AnnotationGangMin, v1alpha1.AnnotationGangUnit:
		_, ok := gangSize(value)
		return ok
	case v1alpha1.AnnotationGangSlots:
		_, ok := parseSlots(value)
		return ok
	case v1alpha1.AnnotationImageCommand:
		var p ImageProcess
		return json.Unmarshal([]byte(value), &p) == nil && len(p.Entrypoint)+len(p.Cmd) > 0
	case v1alpha1.AnnotationInstallResources:
		return len(installOverrides(map[string]string{key: value})) > 0
	}
	return false
}

// gangSize reads how many pods a gang has.
func gangSize(value string) (n int, ok bool) {
	n, err := strconv.Atoi(value)
	return n, err == nil && n >= 1 && n <= v1alpha1.MaxMembers
}

// isCopy reports whether a pod that no job owns was injected as a pod of one: what kubectl debug --copy-to makes, and a
// restored backup.
func isCopy(pod *corev1.Pod) bool {
	_, marked := pod.Annotations[v1alpha1.AnnotationInjected]
	return marked || slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == installContainer }) ||
		slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return wrapped(&c) })
}

// asPlainPod makes a copy a plain pod: without Holdfast's keys, so that no component takes it for a member, and without the agent's
// environment, so that the agent's init becomes the user's command.
func asPlainPod(pod *corev1.Pod) (warning string) {
	var removed []string
	if _, grouped := pod.Annotations[handover.GroupKey]; grouped && handover.Is(pod) {
		removed = append(removed, handover.GroupKey) // or Volcano counts it as one of the gang
		delete(pod.Annotations, handover.GroupKey)
	}
	for _, keys := range []map[string]string{pod.Annotations, pod.Labels} {
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if strings.HasPrefix(key, v1alpha1.Prefix) {
				removed = append(removed, key)
				delete(keys, key)
			}
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return settings.IsOurVariable(e.Name) })
	}
	return fmt.Sprintf("a copy of a pod that holdfast injected, which no job owns: it runs its command as a plain pod, outside of any gang; taken off: %s. "+
		"To train with holdfast create the job", strings.Join(removed, ", "))
}
