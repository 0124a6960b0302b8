package webhook

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/settings"
)

// deviceResources are the extended resources of which a rank usually has one; * stands for any characters but a slash. Their device
// plugins' pages name them.
var deviceResources = []string{
	"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi",
	"huawei.com/Ascend*", "aws.amazon.com/neuroncore", "google.com/tpu",
}

// CheckDevices returns what is wrong with the resources that an installation adds to the known ones; nil: nothing.
func CheckDevices(added []string) error {
	for _, name := range added {
		domain, rest, qualified := strings.Cut(name, "/")
		if _, err := path.Match(name, ""); err != nil || !qualified || domain == "" || rest == "" || strings.ContainsAny(domain, "*?[") ||
			strings.Contains(rest, "/") {
			return fmt.Errorf("%q names no extended resource: write one such as example.com/gpu, or example.com/gpu-*", name)
		}
	}
	return nil
}

// countDevices is how many devices a container requests, by the known resources and those that the installation added.
func countDevices(c *corev1.Container, added []string) int32 {
	n := int64(0)
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for name, q := range list {
			if isDevice(string(name), deviceResources) || isDevice(string(name), added) {
				n += min(q.Value(), protocol.MaxRanks)
			}
		}
		if n > 0 { // where both say it they say the same
			break
		}
	}
	return int32(min(n, protocol.MaxRanks))
}

func isDevice(name string, patterns []string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}

// count sets how many ranks the pod will have, as far as admission knows: if the command has several launchers, the number of the
// one that starts most.
func (t *training) count(s settings.Settings, added []string) {
	if t.ranks = s.Ranks; t.ranks > 0 {
		return
	}
	devices := countDevices(t.container(), added)
	unknown := devices == 0 && settings.AsksForDevices(t.container())
	t.ranksUnknown = unknown
	for _, command := range launch.Plain(t.line.argv) {
		argv := launcherIn(command)
		if argv == nil {
			continue
		}
		spec, err := launch.Parse(argv, t.line.env)
		t.ranksLater = t.ranksLater || err == nil && spec.RanksFrom == launch.RanksLater
		if err == nil && spec.Ranks == launch.RanksAuto {
			spec, err = spec.Resolve(int(devices), 0)
		} else if err == nil {
			t.ranksUnknown = false
		}
		if err == nil {
			t.ranks = max(t.ranks, int32(spec.Ranks))
		}
	}
	if inShell := launcherIn(t.line.argv) == nil; t.ranks == 0 || t.ranksLater || inShell { // whose variables may say more
		t.ranks = max(t.ranks, devices, 1)
	}
}

// checkCounted refuses state in memory for ranks that cannot be counted.
func (t *training) checkCounted(s settings.Settings) *field.Error {
	if !t.ranksUnknown || s.StateBytes == 0 {
		return nil
	}
	return field.Required(t.keyPath(v1alpha1.AnnotationRanks), "memory is needed for each rank, and the devices that container "+t.container().Name+
		" requests do not determine their number: write how many ranks each pod starts, or have the cluster's administrator add the resource to holdfast-controller's flag --device-resource")
}
