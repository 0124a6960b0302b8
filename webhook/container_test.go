package webhook

import (
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestASidecarFirst: the training container is wrapped and gets the memory, also if it is not the first container.
func TestASidecarFirst(t *testing.T) {
	text, err := os.ReadFile("testdata/sidecar-first.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j := &batchv1.Job{}
	if err := yaml.UnmarshalStrict(text, j); err != nil {
		t.Fatal(err)
	}
	before := podOf(j)
	pod := injected(t, j)
	proxy, main := pod.Spec.Containers[0], pod.Spec.Containers[1]
	if proxy.Command[0] != "bash" || len(proxy.Env) > 0 ||
		!proxy.Resources.Requests.Memory().Equal(*before.Spec.Containers[0].Resources.Requests.Memory()) {
		t.Errorf("the sidecar was changed: %s", asYAML(t, proxy))
	}
	if main.Command[0] != agentPath || main.Resources.Limits.Memory().Cmp(*before.Spec.Containers[1].Resources.Limits.Memory()) <= 0 {
		t.Errorf("the trainer was not injected: %s", asYAML(t, main))
	}
	if pod.Annotations[defaultContainerKey] != "main" || pod.Annotations[v1alpha1.AnnotationContainer] != "main" {
		t.Errorf("annotations %v", pod.Annotations)
	}
}

func TestWhichContainerTrains(t *testing.T) {
	type cs = []corev1.Container
	plain := func(name string, command ...string) corev1.Container {
		return corev1.Container{Name: name, Command: command}
	}
	asks := func(c corev1.Container, device corev1.ResourceName, n string) corev1.Container {
		c.Resources.Limits = corev1.ResourceList{device: resource.MustParse(n)}
		return c
	}
	claims := plain("b", "torchrun", "--nproc-per-node=2", "x.py")
	claims.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	shell := plain("b", "bash", "-c", "cd /work && accelerate launch train.py")
	ofKubectl := func(name string) func(*batchv1.Job) { return annotateTemplate(defaultContainerKey, name) }
	for name, c := range map[string]struct {
		containers cs
		change     func(*batchv1.Job)
		want       string // empty: refused
	}{
		"the only one":                     {cs{plain("a", "sleep", "9")}, nil, "a"},
		"named":                            {cs{plain("a", "torchrun", "x.py"), plain("b", "train")}, annotate(v1alpha1.AnnotationContainer, "b"), "b"},
		"devices":                          {cs{plain("a", "torchrun", "x.py"), asks(plain("b", "train"), "amd.com/gpu", "8")}, nil, "b"},
		"a claim":                          {cs{plain("a", "train"), claims}, nil, "b"},
		"no devices":                       {cs{asks(plain("a", "train"), "nvidia.com/gpu", "0"), asks(plain("b", "torchrun", "x.py"), "ephemeral-storage", "1Gi")}, nil, "b"},
		"huge pages are none":              {cs{asks(plain("a", "train"), "hugepages-2Mi", "4Mi"), plain("b", "torchrun", "x.py")}, nil, "b"},
		"devices before kubectl's":         {cs{plain("a", "proxy"), asks(plain("b", "train"), gpuResource, "1")}, ofKubectl("a"), "b"},
		"two with devices, kubectl's":      {cs{asks(plain("a", "fuse"), "smarter-devices/fuse", "1"), asks(plain("b", "train"), gpuResource, "1")}, ofKubectl("b"), "b"},
		"two with devices, one launcher":   {cs{asks(plain("a", "fuse"), "smarter-devices/fuse", "1"), asks(plain("b", "torchrun", "x.py"), gpuResource, "1")}, nil, "b"},
		"two with devices":                 {cs{asks(plain("a", "x"), gpuResource, "1"), asks(plain("b", "y"), gpuResource, "1")}, nil, ""},
		"kubectl's":                        {cs{plain("a", "torchrun", "x.py"), plain("b", "train")}, ofKubectl("b"), "b"},
		"kubectl's of another pod":         {cs{plain("a", "proxy"), plain("b", "torchrun", "x.py")}, ofKubectl("c"), "b"},
		"one launcher":                     {cs{plain("a", "proxy"), plain("b", "mpirun", "train")}, nil, "b"},
		"one launcher in a shell":          {cs{plain("a", "proxy"), shell}, nil, "b"},
		"two launchers":                    {cs{plain("a", "torchrun", "x.py"), plain("b", "torchrun", "y.py")}, nil, ""},
		"no launcher":                      {cs{plain("a", "x"), plain("b", "y")}, nil, ""},
		"one launcher, the other an image": {cs{plain("a"), plain("b", "torchrun", "x.py")}, nil, "b"},
	} {
		var changes []func(*batchv1.Job)
		if c.change != nil {
			changes = append(changes, c.change)
		}
		out := createJob(t.Context(), job(t, append(changes, podSpec(func(s *corev1.PodSpec) { s.Containers = c.containers }))...), Facts{})
		if c.want == "" {
			if len(out.Errors) != 1 || !strings.Contains(said(out), "metadata.annotations[holdfast.dev/container]: Required value: must name the container that trains") ||
				!strings.Contains(said(out), "write one of a, b into annotation holdfast.dev/container") {
				t.Errorf("%s: %s", name, said(out))
			}
			continue
		}
		if got := out.Object.Spec.Template.Annotations[v1alpha1.AnnotationContainer]; len(out.Errors) > 0 || got != c.want {
			t.Errorf("%s: %q, %s", name, got, said(out))
		}
	}
}
