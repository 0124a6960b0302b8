//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var gpuFile = regexp.MustCompile(`^nvidia\d+$`)

// countGPUs counts what torch.cuda.device_count would: the devices of the container, or those that
// CUDA_VISIBLE_DEVICES names.
func countGPUs(env map[string]string) int {
	if v, ok := env["CUDA_VISIBLE_DEVICES"]; ok {
		n := 0
		for _, d := range strings.Split(v, ",") {
			d = strings.TrimSpace(d)
			if d == "" || strings.HasPrefix(d, "-") {
				break // as CUDA has it: what follows an invalid entry does not count
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

// memoryRoom is how much more memory this container may use; known is false where nothing limits it.
func memoryRoom() (room uint64, known bool) {
	for _, g := range []struct{ dir, limit, usage, inactive string }{
		{cgroupDir(""), "memory.max", "memory.current", "inactive_file"},
		{cgroupDir("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	} {
		limit, ok := readNumber(filepath.Join(g.dir, g.limit))
		usage, ok2 := readNumber(filepath.Join(g.dir, g.usage))
		if g.dir == "" || !ok || !ok2 || limit >= 1<<60 {
			continue
		}
		usage -= min(usage, statValue(filepath.Join(g.dir, "memory.stat"), g.inactive))
		return limit - min(limit, usage), true
	}
	return 0, false
}

// cgroupDir is the folder of this process's cgroup for a controller ("" for version 2), as seen from
// inside a container, where it usually is the root of the mount.
func cgroupDir(controller string) string {
	mount, file := "/sys/fs/cgroup", "memory.max"
	if controller != "" {
		mount, file = filepath.Join(mount, controller), "memory.limit_in_bytes"
	}
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
	for _, w := range strings.Split(list, ",") {
		if w == word {
			return true
		}
	}
	return false
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
