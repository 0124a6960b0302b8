package webhook

import (
	"bytes"
	"os"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestQuickStart: the job of docs/quick-start.md is admitted, mounts its own ConfigMap, and its pods get the agent and little memory.
func TestQuickStart(t *testing.T) {
	text, err := os.ReadFile("../examples/kind/train.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := bytes.Cut(text, []byte("\n---\n"))
	var script corev1.ConfigMap
	var j batchv1.Job
	if err := yaml.UnmarshalStrict(first, &script); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(second, &j); err != nil {
		t.Fatal(err)
	}
	if from := j.Spec.Template.Spec.Volumes[0].ConfigMap.Name; from != script.Name || script.Data["train.py"] == "" {
		t.Errorf("the job mounts ConfigMap %s, and %s has %d files", from, script.Name, len(script.Data))
	}
	j.Namespace = "default"
	pod := injected(t, &j)
	if memory := pod.Spec.Containers[0].Resources.Limits.Memory(); memory.Cmp(resource.MustParse("1Gi")) > 0 {
		t.Errorf("each pod may use %s of memory", memory)
	}
	if !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "holdfast-install" }) {
		t.Error("the pod does not get the agent")
	}
}
