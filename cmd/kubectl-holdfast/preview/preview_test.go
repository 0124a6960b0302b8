package preview

import (
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

// Each testdata/NAME.yaml has the answers of the API server and of the scheduler. NAME.txt is the preview.
func TestText(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, file, text string) {
		var a Answers
		if err := yaml.UnmarshalStrict([]byte(text), &a); err != nil {
			t.Fatal(err)
		}
		p, err := Of(a)
		if err != nil {
			t.Fatal(err)
		}
		got := p.Text()
		golden.File(t, golden.Beside(file, ".txt"), got)
		if fits, known := p.Fits(); known != (a.Where != nil) || fits != strings.Contains(got, "would be placed now") {
			t.Errorf("fits %v, known %v", fits, known)
		}
	})
}

// Fields that the API server sets on every object are not shown as changes.
func TestDiffIsAboutHoldfastAlone(t *testing.T) {
	job := &batchv1.Job{}
	job.UID, job.ResourceVersion, job.Generation = "a", "1", 3
	job.Labels = map[string]string{"controller-uid": "a", batchv1.ControllerUidLabel: "a"}
	job.Spec.Template.Labels = map[string]string{"controller-uid": "a", batchv1.ControllerUidLabel: "a", "app": "x"}
	other := job.DeepCopy()
	other.UID, other.ResourceVersion, other.Generation = "b", "2", 1
	other.Labels["controller-uid"], other.Labels[batchv1.ControllerUidLabel] = "b", "b"
	other.Spec.Template.Labels["controller-uid"], other.Spec.Template.Labels[batchv1.ControllerUidLabel] = "b", "b"
	if d, err := diff("Job", jobText, job, other); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	other.Spec.Template.Labels["app"] = "other"
	if d, err := diff("Job", jobText, job, other); !strings.Contains(d, "+        app: other") || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	if other.UID != "b" {
		t.Error("the diff changed what it was given")
	}
}

func TestMembers(t *testing.T) {
	job := &batchv1.Job{}
	job.Name = "train"
	mode, n := batchv1.IndexedCompletion, int32(3)
	job.Spec.CompletionMode, job.Spec.Parallelism = &mode, &n
	first := PodOf(job, 0)
	pods, unasked := Members(first, job)
	if len(pods) != 3 || unasked != "" {
		t.Fatalf("%d pods, %q", len(pods), unasked)
	}
	for i, pod := range pods {
		want := PodOf(job, i)
		if pod.Name != want.Name ||
			pod.Annotations[batchv1.JobCompletionIndexAnnotation] != want.Annotations[batchv1.JobCompletionIndexAnnotation] ||
			pod.Annotations[v1alpha1.AnnotationGangSlot] != strconv.Itoa(i) ||
			pod.Spec.Hostname != want.Spec.Hostname {
			t.Errorf("member %d: %+v", i, pod.ObjectMeta)
		}
	}
	if first.Annotations[batchv1.JobCompletionIndexAnnotation] != "0" {
		t.Error("the first pod was changed")
	}
	n = v1alpha1.MaxPreviewPods + 1
	if pods, unasked := Members(first, job); pods != nil || !strings.Contains(unasked, "5001 pods") {
		t.Errorf("more than may be asked about: %d pods, %q", len(pods), unasked)
	}
}
