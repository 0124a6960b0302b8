package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	mount string
	v2    bool
	// cpuset hierarchies of version 1 take no process until cpus and memory nodes are set.
	cpuset bool
}

// hierarchies lists the machine's cgroup trees: several of version 1, one of version 2, or both kinds.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []hierarchy
	for sc := bufio.NewScanner(f); sc.Scan(); {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 || !strings.HasPrefix(l[4], "/sys/fs/cgroup") {
			continue
		}
		switch r[0] {
		case "cgroup":
			out = append(out, hierarchy{mount: l[4], cpuset: slices.Contains(strings.Split(r[2], ","), "cpuset")})
		case "cgroup2":
			out = append(out, hierarchy{mount: l[4], v2: true})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no cgroup file system is mounted under /sys/fs/cgroup; mount one first")
	}
	return out, nil
}

// CgroupDirs are the directories that a cluster's cgroup path has on this machine.
func CgroupDirs(path string) ([]string, error) {
	hs, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, h := range hs {
		out = append(out, filepath.Join(h.mount, path))
	}
	return out, nil
}

// MakeCgroups makes path in every hierarchy with all controllers usable below it.
func MakeCgroups(path string) error {
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		dir := h.mount
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			if h.v2 {
				enableControllers(dir)
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("making cgroup: %w", err)
			}
			if h.cpuset {
				if err := inheritCpuset(parent, dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// enableControllers hands every controller that dir has to its children. One
// that the kernel refuses to hand down stays unused.
func enableControllers(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(b)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
	}
}

func inheritCpuset(parent, dir string) error {
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(parent, f))
		if errors.Is(err, fs.ErrNotExist) {
			f = strings.TrimPrefix(f, "cpuset.") // mounted with noprefix
			b, err = os.ReadFile(filepath.Join(parent, f))
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f), b, 0); err != nil {
			return fmt.Errorf("setting %s of %s: %w", f, dir, err)
		}
	}
	return nil
}

// JoinCgroups moves a process into path. On version 2 it goes one level
// deeper, since a cgroup there has processes or children, not both.
func JoinCgroups(path string, pid int) error {
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		dir := filepath.Join(h.mount, path)
		if h.v2 {
			dir = filepath.Join(dir, "system")
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			enableControllers(filepath.Dir(dir))
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("moving process %d into cgroup %s: %w", pid, dir, err)
		}
	}
	return nil
}

// cgroupProcs lists the processes in dir and below.
func cgroupProcs(dir string) []int {
	var out []int
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				out = append(out, pid)
			}
		}
		return nil
	})
	return out
}

// RemoveCgroups kills what is left in dirs and removes them, and each one's
// parent where nothing else uses it.
func RemoveCgroups(dirs []string, deadline time.Time) error {
	for {
		left := 0
		for _, dir := range dirs {
			for _, pid := range cgroupProcs(dir) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				left++
			}
		}
		if left == 0 {
			var errs []error
			for _, dir := range dirs {
				errs = append(errs, removeTree(dir))
			}
			if err := errors.Join(errs...); err == nil || time.Now().After(deadline) {
				return err
			}
		} else if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of cgroup %s do not end", left, dirs[0])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func removeTree(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Reverse(all) // children come after their parents in a walk
	for _, d := range all {
		if err := syscall.Rmdir(d); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("removing cgroup %s: %w", d, err)
		}
	}
	_ = syscall.Rmdir(filepath.Dir(dir)) // fails while another cluster is there
	return nil
}

// MemoryBytes is the memory that the cluster's processes and containers use.
func MemoryBytes(dirs []string) (uint64, error) {
	for _, dir := range dirs {
		for _, file := range []string{"memory.usage_in_bytes", "memory.current"} {
			b, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue
			}
			return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		}
	}
	return 0, errors.New("the memory controller is not mounted")
}
