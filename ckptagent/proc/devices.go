//go:build linux

package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast.dev/holdfast/ckptagent/launch"
)

var gpuFile = regexp.MustCompile(`^nvidia\d+$`)

// countGPUs counts like torch.cuda.device_count: the devices of the container, or those that CUDA_VISIBLE_DEVICES names.
func countGPUs(env map[string]string) int {
	if v, ok := env["CUDA_VISIBLE_DEVICES"]; ok {
		n := 0
		for _, d := range strings.Split(v, ",") {
			d = strings.TrimSpace(d)
			if d == "" || strings.HasPrefix(d, "-") {
				break // like CUDA, which ignores all after an invalid entry
			}
			n++
		}
		return n
	}
	n := 0
	entries, _ := os.ReadDir("/dev")
	for _, e := range entries {
		if gpuFile.MatchString(e.Name()) {
			n++
		}
	}
	return n
}

// countTimeout bounds the count of devices by an interpreter: it imports torch, perhaps from slow storage.
const countTimeout = 2 * time.Minute

// countProgram prints the number of devices of a kind that torch sees, as torchrun counts them. It imports backends outside of torch if
// they are installed.
const countProgram = `
import sys
kind = sys.argv[1]
import torch
for backend in {"npu": ["torch_npu"], "hpu": ["habana_frameworks.torch"], "auto": ["torch_npu", "habana_frameworks.torch"]}.get(kind, []):
    try:
        __import__(backend)
    except Exception:
        pass
def count(of):
    return of.device_count() if of is not None and of.is_available() else 0
if kind != "auto":
    n = count(getattr(torch, {"gpu": "cuda"}.get(kind, kind), None))
elif hasattr(torch, "accelerator"):
    n = count(torch.accelerator)
else:
    n = max(count(getattr(torch, name, None)) for name in ("cuda", "xpu", "npu", "hpu"))
print("\nholdfast-devices", n)
`

// devices is the count of the devices that a launcher requests.
type devices struct {
	n int
	// err is why they could not be counted; nil: they were.
	err error
}

// CountDevices counts devices by the interpreter that will train, if the launcher derives the number of ranks from them. NVIDIA's are
// counted without it: importing torch takes seconds.
func (l *Launch) CountDevices(root Root) {
	spec, err := launch.Parse(l.Argv, l.Env)
	kind := spec.AsksDevices()
	if err != nil || kind == "" || l.Invalid != nil { // the interpreter's user is unknown
		return
	}
	if n := countGPUs(l.Env); n > 0 && (kind == "gpu" || kind == "auto") {
		l.devices = devices{n: n}
		return
	}
	l.devices.n, l.devices.err = l.askInterpreter(root, spec, kind)
}

func (l *Launch) askInterpreter(root Root, spec launch.Spec, kind string) (int, error) {
	python, err := l.python(spec)
	if err != nil {
		return 0, err
	}
	limits, err := json.Marshal(l.Limits)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	cmd := exec.CommandContext(
		ctx,
		root.Binary(),
		slices.Concat([]string{"exec", string(limits), "--"}, python, []string{"-c", countProgram, kind})...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = l.Dir, l.environ(nil), time.Second
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return 0, fmt.Errorf("asking %s for its devices: %w: %s", strings.Join(python, " "), err, lines[len(lines)-1])
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "holdfast-devices "); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, fmt.Errorf("asking %s for its devices: it printed no number", strings.Join(python, " "))
}

// deviceFiles are the device files that drivers of accelerators create in a container.
var deviceFiles = []string{"/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel/accel*", "/dev/hl[0-9]*", "/dev/davinci[0-9]*", "/dev/neuron[0-9]*", "/dev/dri/renderD*"}

// resolve sets the number of ranks from devices. resolve refuses one rank per processor if the pod has devices.
func (l *Launch) resolve(spec launch.Spec) (launch.Spec, error) {
	resolved, err := spec.Resolve(l.devices.n, len(l.Limits.CPUs))
	kind := spec.AsksDevices()
	if kind == "" || l.devices.n > 0 {
		return resolved, err
	}
	why := ""
	if l.devices.err != nil {
		why = ": " + l.devices.err.Error()
	}
	for _, pattern := range deviceFiles {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return spec, &launch.Refusal{Flag: "--nproc-per-node=" + kind, Why: "torch in the training interpreter finds no device, although the pod has " + found[0] + why,
				Remedy: "give the number of ranks, and set holdfast.dev/ranks to it, or use an image whose torch supports the device"}
		}
	}
	if err != nil && why != "" {
		err = fmt.Errorf("%w%s", err, why)
	}
	return resolved, err
}

// memoryFiles are the files of this container's memory limit.
type memoryFiles struct {
	limit, usage, stat string
	cache              []string // the numbers in stat of what the kernel reclaims before it kills
}

// ownMemoryFiles is determined once, because a process stays in its cgroup.
var ownMemoryFiles = sync.OnceValue(func() (all []memoryFiles) {
	for _, f := range []struct {
		controller string
		memoryFiles
	}{
		{"", memoryFiles{"memory.max", "memory.current", "memory.stat", []string{"inactive_file", "active_file"}}},
		{"memory", memoryFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", []string{"total_inactive_file", "total_active_file"}}},
	} {
		if dir := cgroupDir(f.controller, f.limit); dir != "" {
			in := func(name string) string { return filepath.Join(dir, name) }
			all = append(all, memoryFiles{in(f.limit), in(f.usage), in(f.stat), f.cache})
		}
	}
	return all
})

// memoryRoom returns how many more bytes this container may use; known is false without a limit.
func memoryRoom() (room uint64, known bool) {
	for _, f := range ownMemoryFiles() {
		limit, ok := readNumber(f.limit)
		if !ok || limit >= 1<<60 {
			continue
		}
		usage, ok := readNumber(f.usage)
		if !ok {
			continue
		}
		for _, cache := range f.cache {
			usage -= min(usage, statValue(f.stat, cache))
		}
		return limit - min(limit, usage), true
	}
	return 0, false
}

// cgroupDir returns the folder with this file of this process's cgroup for a controller ("" for version 2), as seen in the container, where
// it usually is the root of the mount.
func cgroupDir(controller, file string) string {
	mount := filepath.Join("/sys/fs/cgroup", controller)
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !hasWord(f[1], controller) {
			continue
		}
		for _, dir := range []string{filepath.Join(mount, f[2]), mount} {
			if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
				return dir
			}
		}
	}
	return ""
}

func hasWord(list, word string) bool {
	return slices.Contains(strings.Split(list, ","), word)
}

func readNumber(file string) (uint64, bool) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	return n, err == nil
}

func statValue(file, name string) uint64 {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}
