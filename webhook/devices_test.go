package webhook

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/internal/settings"
)

// gpuResource is the most common GPU resource.
const gpuResource = corev1.ResourceName("nvidia.com/gpu")

// TestRanksOfDevices: memory is counted for as many ranks as the pod requests devices, of any maker, or as the launcher's arguments say. If
// neither gives the number, the error names the annotation.
func TestRanksOfDevices(t *testing.T) {
	for name, c := range map[string]struct {
		asks    map[string]string
		claim   bool
		command []string
		added   []string
		ranks   int32
		refused bool
	}{
		"NVIDIA":                 {asks: map[string]string{"nvidia.com/gpu": "8"}, command: []string{"torchrun", "--nproc-per-node=auto", "t.py"}, ranks: 8},
		"shared":                 {asks: map[string]string{"nvidia.com/gpu.shared": "2"}, command: []string{"torchrun", "--nproc-per-node=gpu", "t.py"}, ranks: 2},
		"MIG, two sizes":         {asks: map[string]string{"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-3g.20gb": "1"}, command: []string{"bash", "-c", "torchrun --nproc-per-node=auto t.py"}, ranks: 3},
		"AMD":                    {asks: map[string]string{"amd.com/gpu": "4"}, command: []string{"run.sh"}, ranks: 4},
		"Intel":                  {asks: map[string]string{"gpu.intel.com/xe": "2"}, command: []string{"torchrun", "--nproc-per-node=xpu", "t.py"}, ranks: 2},
		"Gaudi":                  {asks: map[string]string{"habana.ai/gaudi": "8"}, command: []string{"run.sh"}, ranks: 8},
		"Ascend":                 {asks: map[string]string{"huawei.com/Ascend910": "8"}, command: []string{"torchrun", "--nproc-per-node=npu", "t.py"}, ranks: 8},
		"Neuron":                 {asks: map[string]string{"aws.amazon.com/neuroncore": "2"}, command: []string{"run.sh"}, ranks: 2},
		"another's":              {asks: map[string]string{"example.com/npu-a": "3"}, command: []string{"run.sh"}, added: []string{"example.com/npu-*"}, ranks: 3},
		"another's, not named":   {asks: map[string]string{"example.com/npu-a": "3"}, command: []string{"run.sh"}, ranks: 1, refused: true},
		"a claim":                {claim: true, command: []string{"torchrun", "--nproc-per-node=auto", "t.py"}, ranks: 1, refused: true},
		"a claim, and a number":  {claim: true, command: []string{"bash", "-c", "cd /w && torchrun --nproc-per-node=4 t.py"}, ranks: 4},
		"one launcher after one": {asks: map[string]string{"nvidia.com/gpu": "8"}, command: []string{"bash", "-c", "torchrun prepare.py && torchrun --nproc-per-node=8 t.py && torchrun --nproc-per-node=2 e.py"}, ranks: 8},
		"none":                   {command: []string{"torchrun", "t.py"}, ranks: 1},
	} {
		box := corev1.Container{Name: "main", Command: c.command, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
		for name, n := range c.asks {
			box.Resources.Limits[corev1.ResourceName(name)] = resource.MustParse(n)
		}
		if c.claim {
			box.Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
		}
		s := settings.Settings{StateBytes: 1 << 30}
		tr, errs := findTraining(
			t.Context(),
			&corev1.PodSpec{Containers: []corev1.Container{box}},
			nil,
			specPath,
			s,
			settings.MetadataAnnotations.Key,
		)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		tr.count(s, c.added)
		if err := tr.checkCounted(s); tr.ranks != c.ranks || (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "holdfast.dev/ranks") {
			t.Errorf("%s: %d ranks, %v", name, tr.ranks, err)
		}
	}
}

// TestDeviceFlag: the controller does not start with a value that is not the name of a resource.
func TestDeviceFlag(t *testing.T) {
	for name, good := range map[string]bool{"example.com/gpu": true, "example.com/gpu-*": true, "gpu": false, "*/gpu": false, "example.com/": false, "example.com/[": false, "a/b/c": false} {
		if err := CheckDevices([]string{name}); (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
