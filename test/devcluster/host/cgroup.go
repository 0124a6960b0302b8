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

// Hierarchy is one mounted cgroup tree.
type Hierarchy struct {
	Mount string
	V2    bool
	// Options distinguish version 1 trees in their mount options: controllers, or a name.
	Options []string
}

// cpuset reports whether this is a version 1 cpuset tree, which takes no process until cpus and memory nodes are set.
func (h Hierarchy) cpuset() bool { return slices.Contains(h.Options, "cpuset") }

// Hierarchies lists the machine's cgroup trees: several of version 1, one of version 2, or both kinds.
func Hierarchies() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Hierarchy
	for sc := bufio.NewScanner(f); sc.Scan(); {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 || !strings.HasPrefix(l[4], "/sys/fs/cgroup") {
			continue
		}
		switch r[0] {
		case "cgroup":
			out = append(out, Hierarchy{Mount: l[4], Options: identity(r[2])})
		case "cgroup2":
			out = append(out, Hierarchy{Mount: l[4], V2: true})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no cgroup file system is mounted under /sys/fs/cgroup; mount one first")
	}
	return out, nil
}

// identity returns the mount options that identify a tree.
func identity(options string) []string {
	var out []string
	for _, o := range strings.Split(options, ",") {
		switch {
		case o == "rw" || o == "ro" || o == "xattr" || o == "clone_children" || o == "noprefix" || strings.HasPrefix(o, "release_agent="):
		case strings.HasPrefix(o, "name="):
			return []string{"none", o}
		default:
			out = append(out, o)
		}
	}
	return out
}

// CgroupDirs are the directories of a cluster's cgroup path on this machine.
func CgroupDirs(path string) ([]string, error) {
	hs, err := Hierarchies()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, h := range hs {
		out = append(out, filepath.Join(h.Mount, path))
	}
	return out, nil
}

// MakeCgroups creates path in every hierarchy with all controllers usable below it.
func MakeCgroups(path string) error {
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		dir := h.Mount
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			if h.V2 {
				enableControllers(dir)
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("making cgroup: %w", err)
			}
			if h.cpuset() {
				if err := inheritCpuset(parent, dir); err != nil {
					return err
				}
			}
			// The scheduler counts a cgroup as one process, but a cluster has many.
			weigh(dir)
		}
	}
	return nil
}

// enableControllers enables all of dir's controllers for its children. One that the kernel refuses stays unused.
func enableControllers(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(b)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
	}
}

// weigh gives dir the CPU weight of eight processes, if its tree schedules the CPU.
func weigh(dir string) {
	for file, weight := range map[string]string{"cpu.shares": "8192", "cpu.weight": "800"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			_ = os.WriteFile(filepath.Join(dir, file), []byte(weight), 0) // a refusal costs speed only
		}
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

// JoinCgroups moves a process to path; 0 is the caller. In version 2 trees a cgroup has either processes or children with controllers, so
// there the process goes to sub below path; sub may be empty.
func JoinCgroups(path, sub string, pid int) error {
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		dir := filepath.Join(h.Mount, path)
		if h.V2 {
			dir = filepath.Join(dir, sub)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("moving process %d into cgroup %s: %w", pid, dir, err)
		}
	}
	return nil
}

// StepAside moves the caller from path to a child of it in version 2 trees, so
// that path can have children with controllers.
func StepAside(path string) error {
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if !h.V2 {
			continue
		}
		dir := filepath.Join(h.Mount, path, "system")
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("moving into cgroup %s: %w", dir, err)
		}
		enableControllers(filepath.Dir(dir))
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

// RemoveCgroups kills the processes in dirs and removes dirs, and each parent that is then empty.
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
	_ = syscall.Rmdir(filepath.Dir(dir)) // fails while another cluster exists
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

// KillTogether kills all processes of a container process's cgroup at once, so that none outlives another: the kernel's out-of-memory
// killer does the same in a version 2 tree. In version 1 they are frozen first.
func KillTogether(pid int) error {
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	unified, freezer := "", ""
	for _, h := range hs {
		for line := range strings.Lines(string(text)) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			switch {
			case len(fields) != 3 || fields[2] == "/":
			case h.V2 && fields[1] == "":
				unified = filepath.Join(h.Mount, fields[2])
			case !h.V2 && fields[1] == "freezer" && slices.Contains(h.Options, "freezer"):
				freezer = filepath.Join(h.Mount, fields[2])
			}
		}
	}
	switch {
	case freezer != "":
		return killFrozen(freezer)
	case unified != "":
		return os.WriteFile(filepath.Join(unified, "cgroup.kill"), []byte("1"), 0)
	}
	return fmt.Errorf("the cgroup of process %d can be neither killed nor frozen", pid)
}

func killFrozen(dir string) error {
	file := filepath.Join(dir, "freezer.state")
	if err := os.WriteFile(file, []byte("FROZEN"), 0); err != nil {
		return err
	}
	defer func() { _ = os.WriteFile(file, []byte("THAWED"), 0) }() // fails if the cgroup is gone
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(state)) == "FROZEN" {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s says %s", file, state)
		}
	}
	var errs []error
	for _, pid := range cgroupProcs(dir) {
		errs = append(errs, syscall.Kill(pid, syscall.SIGKILL))
	}
	return errors.Join(errs...)
}
