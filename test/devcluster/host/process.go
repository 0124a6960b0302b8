package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// Identify describes the running process pid.
func Identify(pid int) (layout.Process, error) {
	start, err := startTime(pid)
	if err != nil {
		return layout.Process{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return layout.Process{}, err
	}
	return layout.Process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether p still runs; a later process with its number does not count.
func Alive(p layout.Process) bool {
	if p.PID == 0 {
		return false
	}
	now, err := Identify(p.PID)
	return err == nil && now == p && state(p.PID) != "Z"
}

// Kill ends p if it still runs.
func Kill(p layout.Process) error {
	if !Alive(p) {
		return nil
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process %d: %w", p.PID, err)
	}
	return nil
}

// statFields are the fields of /proc/PID/stat after the program's name, which may itself contain spaces and brackets.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	return f, nil
}

func startTime(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func state(pid int) string {
	f, err := statFields(pid)
	if err != nil {
		return ""
	}
	return f[0]
}

// Child is a process seen from the machine's process namespace.
type Child struct {
	PID    int
	Parent int
	Args   []string
}

// Descendants lists all processes below pid, nearest first.
func Descendants(pid int) ([]Child, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]Child{}
	for _, d := range dirs {
		p, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		f, err := statFields(p)
		if err != nil || f[0] == "Z" {
			continue // it ended meanwhile
		}
		parent, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(d + "/cmdline")
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		children[parent] = append(children[parent], Child{PID: p, Parent: parent, Args: args})
	}
	var out []Child
	queue := []int{pid}
	for len(queue) > 0 {
		next := children[queue[0]]
		queue = queue[1:]
		for _, c := range next {
			out = append(out, c)
			queue = append(queue, c.PID)
		}
	}
	return out, nil
}

// NodeInit returns process 1 of a node, by its number on the machine; 0 if the node is off.
func NodeInit(rec *layout.Record, node string) (int, error) {
	if !Alive(rec.Supervisor) {
		return 0, fmt.Errorf("cluster %s is not running", rec.Spec.Name)
	}
	all, err := Descendants(rec.Supervisor.PID)
	if err != nil {
		return 0, err
	}
	for _, c := range all {
		if c.Parent == rec.Supervisor.PID && len(c.Args) == 4 && c.Args[1] == "node-init" && c.Args[3] == node {
			return c.PID, nil
		}
	}
	return 0, nil
}

// NodeComponent finds a child of a node's process 1, such as kubelet.
func NodeComponent(rec *layout.Record, node, name string) (int, error) {
	root, err := NodeInit(rec, node)
	if err != nil || root == 0 {
		return 0, err
	}
	all, err := Descendants(root)
	if err != nil {
		return 0, err
	}
	for _, c := range all {
		if c.Parent == root && filepath.Base(c.Args[0]) == name {
			return c.PID, nil
		}
	}
	return 0, nil
}
