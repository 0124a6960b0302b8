package slim

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// mostKept is the most bytes that may be kept of one Job, whatever its author writes into it.
const mostKept = 16 << 10

// large returns a Job of 1 MB, in all fields that a tenant can write.
func large(annotations map[string]string) *batchv1.Job {
	many, much := map[string]string{}, strings.Repeat("x", 200_000)
	for i := range 1000 {
		many[fmt.Sprintf("example.com/%050d", i)] = strings.Repeat("v", 63)
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train", UID: "u", ResourceVersion: "7", Labels: many,
		Annotations: map[string]string{"example.com/a": much}, Finalizers: []string{"example.com/" + much},
		ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: &metav1.FieldsV1{Raw: []byte(`"` + much + `"`)}}}}}
	job.Spec = batchv1.JobSpec{Parallelism: ptr.To(int32(3)), Suspend: ptr.To(true), Selector: &metav1.LabelSelector{MatchLabels: many}}
	job.Spec.Template.Labels, job.Spec.Template.Annotations = many, map[string]string{"example.com/a": much}
	maps.Copy(job.Spec.Template.Annotations, annotations)
	job.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Args: []string{much, much}}}
	job.Status = batchv1.JobStatus{
		CompletedIndexes: much,
		Conditions:       []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "R", Message: "M"}},
	}
	return job
}

func kept(t *testing.T, job *batchv1.Job) *batchv1.Job {
	t.Helper()
	got, err := Job(job)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > mostKept {
		t.Errorf("%d bytes are kept", len(text))
	}
	return got.(*batchv1.Job)
}

// TestJobsAreKeptSmall: whatever a tenant writes into a Job, few bytes of it are kept. The fields that Holdfast reads are kept.
func TestJobsAreKeptSmall(t *testing.T) {
	long := strings.Repeat("0", 200_000)
	for name, c := range map[string]struct {
		annotations map[string]string
		admitted    bool
	}{
		"plain":            {nil, false},
		"admitted":         {map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "3", v1alpha1.AnnotationStateSize: "1Gi", v1alpha1.AnnotationImageCommand: long}, true},
		"a long container": {map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "3", v1alpha1.AnnotationContainer: long}, false},
		"a long number":    {map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "3", v1alpha1.AnnotationRanks: long + "1"}, false},
		"a long size":      {map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: long + "3"}, false},
		"unknown keys":     {map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "3", v1alpha1.Prefix + "x": long}, false},
	} {
		job := large(c.annotations)
		job.Annotations[v1alpha1.AnnotationRetrySizes] = long
		job.Labels[settings.QueueLabel] = "team-a"
		want, admitted := settings.AdmittedJob(job)
		if admitted != c.admitted {
			t.Errorf("%s: admitted %v", name, admitted)
		}
		got := kept(t, job)
		if admitted && settings.Queue(got) != "team-a" || len(got.Labels) > 1 {
			t.Errorf("%s: labels %v are kept", name, got.Labels)
		}
		if is, ok := settings.AdmittedJob(got); ok != admitted || is != want {
			t.Errorf("%s: %+v, %v is read of what is kept, want %+v, %v", name, is, ok, want, admitted)
		}
		if got.UID != "u" || got.Name != "train" || got.Namespace != "ns" || got.ResourceVersion != "7" || !*got.Spec.Suspend ||
			!reflect.DeepEqual(got.Status.Conditions, job.Status.Conditions) {
			t.Errorf("%s: kept is %+v", name, got)
		}
		for k := range got.Spec.Selector.MatchLabels {
			if job.Spec.Selector.MatchLabels[k] == "" {
				t.Errorf("%s: label %s is no one's", name, k)
			}
		}
		if len(got.Spec.Selector.MatchLabels) == 0 {
			t.Errorf("%s: no label of the selector is kept: no pod could be taken out of the Job", name)
		}
	}
}

// TestDevicesAreKept: the cache keeps whether the pods of an admitted Job request devices, whatever their name.
func TestDevicesAreKept(t *testing.T) {
	long := corev1.ResourceName("example.com/" + strings.Repeat("x", 200_000))
	for _, devices := range []corev1.ResourceName{"", long, "nvidia.com/gpu"} {
		job := large(map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "3"})
		if devices != "" {
			job.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{devices: resource.MustParse("1")}
		}
		for range 2 { // a transform may be called again with its own result
			job = kept(t, job)
			if got := settings.RequestsDevices(&job.Spec.Template.Spec); got != (devices != "") {
				t.Errorf("%.20s: kept is %v", devices, got)
			}
		}
	}
}

// TestPinsOfJobsAreKept: the pins of an admitted Job are kept as they are parsed. Other content of that annotation is not.
func TestPinsOfJobsAreKept(t *testing.T) {
	admitted := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationGangSize: "3"}
	for value, want := range map[string]string{"120@3, 180@3": "120@3,180@3", strings.Repeat(" ", 200_000) + "1@1": "", "x": "", "": ""} {
		job := large(admitted)
		job.Annotations[v1alpha1.AnnotationPinnedCheckpoints] = value
		if got := kept(t, job).Annotations[v1alpha1.AnnotationPinnedCheckpoints]; got != want {
			t.Errorf("%d characters: kept is %q, want %q", len(value), got, want)
		}
		job.Annotations[v1alpha1.AnnotationPinWish] = "12"
		if got := kept(t, job).Annotations[v1alpha1.AnnotationPinWish]; got != "12" {
			t.Errorf("kept is wish %q", got)
		}
		job = large(nil)
		job.Annotations[v1alpha1.AnnotationPinnedCheckpoints], job.Annotations[v1alpha1.AnnotationPinWish] = value, "12"
		if got := kept(t, job).Annotations; got != nil {
			t.Errorf("of a Job that is none of ours: %v", got)
		}
	}
}

// TestMetadataIsKeptSmall: of a job of another kind its identity and the annotations that Holdfast reads are kept.
func TestMetadataIsKeptSmall(t *testing.T) {
	for name, c := range map[string]struct{ had, want map[string]string }{
		"not opted in": {nil, nil},
		"opted in":     {map[string]string{v1alpha1.AnnotationEnabled: "true"}, map[string]string{v1alpha1.AnnotationEnabled: "true"}},
		"no check now": {map[string]string{v1alpha1.AnnotationNodeCheck: "off"}, map[string]string{v1alpha1.AnnotationNodeCheck: "off"}},
		"a check":      {map[string]string{v1alpha1.AnnotationNodeCheck: "always"}, nil},
		"not now":      {map[string]string{v1alpha1.AnnotationEnabled: "false", v1alpha1.AnnotationPinWish: "2"}, map[string]string{v1alpha1.AnnotationPinWish: "2"}},
		"pins": {
			map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationPinnedCheckpoints: "120@3, 180@3"},
			map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationPinnedCheckpoints: "120@3,180@3"},
		},
		"retried sizes":      {map[string]string{v1alpha1.AnnotationRetrySizes: "7"}, map[string]string{v1alpha1.AnnotationRetrySizes: "7"}},
		"long retried sizes": {map[string]string{v1alpha1.AnnotationRetrySizes: strings.Repeat("1", 200_000)}, nil},
		"long pins":          {map[string]string{v1alpha1.AnnotationPinnedCheckpoints: strings.Repeat(" ", 200_000) + "1@1"}, nil},
	} {
		m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob"}, ObjectMeta: large(c.had).ObjectMeta}
		maps.Copy(m.Annotations, c.had)
		m.Labels[settings.QueueLabel] = "team-a"
		before := m.DeepCopy()
		for range 2 { // a transform may be called again with its own result
			got, err := Metadata(m)
			if err != nil {
				t.Fatal(err)
			}
			kept := got.(*metav1.PartialObjectMetadata)
			want := &metav1.PartialObjectMetadata{TypeMeta: before.TypeMeta, ObjectMeta: metav1.ObjectMeta{
				Namespace:       "ns",
				Name:            "train",
				UID:             "u",
				ResourceVersion: "7",
				Labels:          map[string]string{settings.QueueLabel: "team-a"},
				Annotations:     c.want,
			}}
			if !reflect.DeepEqual(kept, want) {
				t.Errorf("%s: kept is %+v", name, kept)
			}
			m = kept
		}
	}
	gone := struct{}{}
	if got, err := Metadata(gone); err != nil || got != any(gone) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestSelectorsKeepWhatCanGo: only a few labels of a selector are kept. The label of the gang is not among them, because it is never
// removed from a pod.
func TestSelectorsKeepWhatCanGo(t *testing.T) {
	job := &batchv1.Job{}
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: "train", "zzz": "1"}}
	for i := range mostKeys - 1 {
		job.Spec.Selector.MatchLabels[fmt.Sprintf("z%02d", i)] = "1"
	}
	got := kept(t, job).Spec.Selector.MatchLabels
	if len(got) != mostKeys || got[v1alpha1.LabelGang] != "" || got["zzz"] == "" {
		t.Errorf("kept are %v", got)
	}
}

// TestWhatIsNoJobIsKept: a cache also passes tombstones of deleted objects to the transform.
func TestWhatIsNoJobIsKept(t *testing.T) {
	now := metav1.NewTime(time.Unix(1, 0))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", DeletionTimestamp: &now}}
	if got, err := Job(pod); err != nil || got != any(pod) {
		t.Errorf("%v, %v", got, err)
	}
	if got := kept(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}); !got.DeletionTimestamp.Equal(&now) ||
		got.Spec.Selector != nil {
		t.Errorf("kept is %+v", got)
	}
}
