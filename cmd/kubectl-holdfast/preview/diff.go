package preview

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// diff is the unified diff of two objects, without what differs from call to call.
func diff[T any](kind string, text func(*T) (string, error), before, after *T) (string, error) {
	a, err := text(before)
	if err != nil {
		return "", err
	}
	b, err := text(after)
	if err != nil {
		return "", err
	}
	d, err := difflib.GetUnifiedDiffString(
		difflib.UnifiedDiff{
			A:        difflib.SplitLines(a),
			B:        difflib.SplitLines(b),
			FromFile: kind + " without Holdfast",
			ToFile:   kind + " with Holdfast",
			Context:  2,
		},
	)
	if err != nil {
		return "", fmt.Errorf("comparing: %w", err)
	}
	return d, nil
}

func jobText(in *batchv1.Job) (string, error) {
	job := in.DeepCopy()
	settle(&job.ObjectMeta)
	job.Labels = unlike(job.Labels)
	job.Spec.Template.Labels = unlike(job.Spec.Template.Labels)
	job.Spec.Selector = nil // names the uid
	return render(map[string]any{"metadata": job.ObjectMeta, "spec": job.Spec})
}

func podText(in *corev1.Pod) (string, error) {
	pod := in.DeepCopy()
	settle(&pod.ObjectMeta)
	pod.Labels = unlike(pod.Labels)
	for i := range pod.Spec.InitContainers {
		shorten(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		shorten(&pod.Spec.Containers[i])
	}
	return render(map[string]any{"metadata": pod.ObjectMeta, "spec": pod.Spec})
}

// settle takes away what the API server makes up for each object.
func settle(m *metav1.ObjectMeta) {
	m.UID, m.ResourceVersion, m.Generation, m.ManagedFields = "", "", 0, nil
	m.CreationTimestamp = metav1.Time{}
	for i := range m.OwnerReferences {
		m.OwnerReferences[i].UID = ""
	}
}

// unlike takes away the labels that carry the Job's uid.
func unlike(labels map[string]string) map[string]string {
	delete(labels, batchv1.ControllerUidLabel)
	delete(labels, "controller-uid")
	return labels
}

// shorten keeps certificates out of the text.
func shorten(c *corev1.Container) {
	for i := range c.Env {
		if e := &c.Env[i]; strings.Contains(e.Value, "-----BEGIN ") {
			e.Value = fmt.Sprintf("(PEM, %d bytes)", len(e.Value))
		}
	}
}

// tokenVolume has a random end for each pod.
var tokenVolume = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)

func render(v any) (string, error) {
	b, err := yaml.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("writing yaml: %w", err)
	}
	return tokenVolume.ReplaceAllString(string(b), "kube-api-access"), nil
}
