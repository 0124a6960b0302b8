package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// timeFormat is the format of times in objects.
const timeFormat = time.RFC3339

// sortedKeys returns the keys of a map, in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// decode decodes the fields of an object that T has. The error names a field of the wrong type.
func decode[T any](obj *unstructured.Unstructured) (*T, error) {
	text, err := json.Marshal(obj.Object)
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, json.Unmarshal(text, out)
}

// unreadable refuses an object that cannot be decoded.
func unreadable(obj *unstructured.Unstructured, err error) field.ErrorList {
	return field.ErrorList{field.Invalid(field.NewPath("spec"), obj.GetKind(),
		fmt.Sprintf("cannot be read: %v; correct the field's type", err))}
}

// madeBy returns the controller reference of a pod, if it is of this kind.
func madeBy(pod *corev1.Pod, kind schema.GroupVersionKind) *metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
		return nil
	}
	return ref
}

// index reads a number from 0 that a controller wrote on a pod as a label, an annotation or both; -1: it wrote none.
func index(pod *corev1.Pod, key string) int32 {
	text, is := pod.Labels[key]
	if !is {
		text = pod.Annotations[key]
	}
	return number(text)
}

// completionIndex returns the index of a pod in its batch Job, which all versions write as an annotation.
func completionIndex(pod *corev1.Pod) int32 {
	return number(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
}

// number parses a number from 0 as controllers write it; -1: the text is no such number.
func number(text string) int32 {
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil || v < 0 || strconv.FormatInt(v, 10) != text {
		return -1
	}
	return int32(v)
}

// WriteMetadata writes the labels and annotations of the role's template, as Pod has them, into the object that the role was read
// from.
func (r *Role) WriteMetadata(obj *unstructured.Unstructured) {
	var at any = obj.Object
	for _, step := range r.steps {
		switch step := step.(type) {
		case string:
			m, _ := at.(map[string]any)
			at = m[step]
		case int:
			list, _ := at.([]any)
			if step >= len(list) {
				return
			}
			at = list[step]
		}
	}
	template, is := at.(map[string]any)
	if !is {
		return
	}
	metadata, is := template["metadata"].(map[string]any)
	if !is {
		metadata = map[string]any{}
	}
	labels := setStrings(metadata, "labels", r.Pod.Labels)
	if setStrings(metadata, "annotations", r.Pod.Annotations) || labels {
		template["metadata"] = metadata
	}
}

// setStrings writes a map of strings into a field, and reports whether that changed the field.
func setStrings(of map[string]any, key string, want map[string]string) (changed bool) {
	had, _ := of[key].(map[string]any)
	same := len(had) == len(want)
	value := make(map[string]any, len(want))
	for k, v := range want {
		same = same && had[k] == v
		value[k] = v
	}
	switch {
	case same:
	case len(want) == 0:
		delete(of, key)
	default:
		of[key] = value
	}
	return !same
}

// conditioned is the part of a status that has conditions. Most kinds have it.
type conditioned struct {
	Spec struct {
		Suspend   bool `json:"suspend"`
		RunPolicy struct {
			Suspend bool `json:"suspend"`
		} `json:"runPolicy"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// state returns the state that conditions show: whether the object has failed, or has ended well.
func (c *conditioned) state(kind, well string, suspended bool) State {
	s := State{Suspended: suspended}
	for _, have := range c.Status.Conditions {
		failed := have.Type == "Failed"
		if have.Status != string(metav1.ConditionTrue) || !failed && have.Type != well || s.Failed {
			continue
		}
		s.Ended, s.Final, s.Failed = true, true, failed
		s.Message = endText(kind, failed, have.Reason, have.Message)
	}
	return s
}

// endText returns the message of an object that has ended.
func endText(kind string, failed bool, reason, message string) string {
	switch {
	case !failed:
		return "the " + kind + " is complete"
	case reason == "" || message == "":
		return reason + message
	}
	return reason + ": " + message
}

// failedCondition returns the patch of a status that sets condition Failed in a list that cannot be merged by type: the whole list, for the
// version of the object that was read. off are conditions that become false with it.
func failedCondition(obj *unstructured.Unstructured, f Failure, stamps []string, off ...string) map[string]any {
	at := f.At.UTC().Format(timeFormat)
	failed := map[string]any{"type": "Failed", "status": "True", "reason": f.Reason, "message": f.Message}
	for _, key := range stamps {
		failed[key] = at
	}
	conditions := []any{}
	had, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range had {
		m, is := c.(map[string]any)
		if !is || m["type"] == "Failed" {
			continue
		}
		for _, kind := range off {
			if m["type"] == kind {
				m["status"] = "False"
			}
		}
		conditions = append(conditions, m)
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": obj.GetResourceVersion()},
		"status":   map[string]any{"conditions": append(conditions, failed)},
	}
}

// statusPatch returns a merge patch of the status.
func statusPatch(patch map[string]any) Write {
	return Write{Status: true, Type: types.MergePatchType, Patch: patch}
}

// later returns variables whose values a kind's controller sets when it creates a pod.
func later(names ...string) (env []corev1.EnvVar) {
	for _, name := range names {
		env = append(env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{}})
	}
	return env
}

// endless returns a warning for pods that never succeed; policy is the field with the restartPolicy. A rank that has ended with 0 does not
// train again: its launcher returns at once.
func endless(at *field.Path, policy, kind string) string {
	return fmt.Sprintf("%s: %s starts a container again that has ended with 0, so that no pod succeeds and the %s does not end with its training; write OnFailure or Never",
		at, policy, kind)
}
