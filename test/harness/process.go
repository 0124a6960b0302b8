package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Process is one process of a container, as seen from this machine, on which nodes and containers run.
type Process struct {
	// Host and Inside are its process ids on this machine and in its container.
	Host, Inside int
	// Name and State are as ps shows them.
	Name, State string
	Args        []string
}

// Processes lists the processes in one container of a pod.
func (w *World) Processes(ctx context.Context, namespace, pod, container string) ([]Process, error) {
	p, err := w.kube.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	id := containerID(p, container)
	if id == "" {
		return nil, fmt.Errorf("container %s of pod %s has no id yet", container, pod)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, dir := range dirs {
		// A process may end while it is read: then it is skipped.
		cgroup, err := os.ReadFile(dir + "/cgroup")
		if err != nil || !strings.Contains(string(cgroup), id) {
			continue
		}
		host, _ := strconv.Atoi(filepath.Base(dir))
		inside, err := insidePID(dir)
		if err != nil {
			continue
		}
		name, _ := os.ReadFile(dir + "/comm")
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		out = append(
			out,
			Process{
				Host:   host,
				Inside: inside,
				Name:   strings.TrimSpace(string(name)),
				State:  stateOf(dir),
				Args:   strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00"),
			},
		)
	}
	return out, nil
}

func containerID(p *corev1.Pod, container string) string {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container {
			_, id, _ := strings.Cut(s.ContainerID, "://")
			return id
		}
	}
	return ""
}

// stateOf is the kernel's state of a process: its letter and where it waits.
func stateOf(dir string) string {
	stat, _ := os.ReadFile(dir + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	letter, _, _ := strings.Cut(rest, " ")
	waits, _ := os.ReadFile(dir + "/wchan")
	return letter + " " + string(waits)
}

// insidePID is a process's id in the innermost PID namespace.
func insidePID(dir string) (int, error) {
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "NSpid:" {
			return strconv.Atoi(fields[len(fields)-1])
		}
	}
	return 0, fmt.Errorf("no NSpid in %s/status", dir)
}

// Find returns the one process of a container that matches.
func (w *World) Find(ctx context.Context, namespace, pod, container string, is func(Process) bool) (Process, error) {
	all, err := w.Processes(ctx, namespace, pod, container)
	if err != nil {
		return Process{}, err
	}
	for _, p := range all {
		if is(p) {
			return p, nil
		}
	}
	return Process{}, fmt.Errorf("none of the %d processes of pod %s matches", len(all), pod)
}

// Numbered matches the process with that id inside its container.
func Numbered(inside int) func(Process) bool {
	return func(p Process) bool { return p.Inside == inside }
}

// Agent matches the agent itself, not PID 1.
func Agent(p Process) bool {
	return p.Inside != 1 && len(p.Args) > 1 && filepath.Base(p.Args[0]) == "holdfast-agent" && p.Args[1] == "run"
}

// HostPID is the id on this machine of a process of a container.
func (w *World) HostPID(ctx context.Context, namespace, pod, container string, inside int) (int, error) {
	p, err := w.Find(ctx, namespace, pod, container, Numbered(inside))
	return p.Host, err
}

// Signal sends the process a signal.
func (p Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(p.Host, sig); err != nil {
		return fmt.Errorf("sending %s to process %d (%s): %w", sig, p.Inside, strings.Join(p.Args, " "), err)
	}
	return nil
}

// Signal sends a signal to the one process of a container that matches.
func (w *World) Signal(ctx context.Context, namespace, pod, container string, sig syscall.Signal, is func(Process) bool) error {
	p, err := w.Find(ctx, namespace, pod, container, is)
	if err != nil {
		return err
	}
	return p.Signal(sig)
}

// Runs reports whether any process of a container, by its id, is left.
func Runs(container string) (bool, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return false, err
	}
	for _, file := range dirs {
		if cgroup, err := os.ReadFile(file); err == nil && strings.Contains(string(cgroup), container) {
			return true, nil
		}
	}
	return false, nil
}

// Kill kills the one process of a container that matches, and returns the time.
func (w *World) Kill(ctx context.Context, namespace, pod, container string, is func(Process) bool) (time.Time, error) {
	p, err := w.Find(ctx, namespace, pod, container, is)
	if err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	return at, p.Signal(syscall.SIGKILL)
}
