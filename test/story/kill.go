package story

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

// process is one process of a container, seen from this machine: nodes and their containers run here.
type process struct {
	host, inside int
	name, state  string // as ps shows them
	args         []string
}

// processes lists what runs in one container of a pod.
func (w *World) processes(ctx context.Context, namespace, pod, container string) ([]process, error) {
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
	var out []process
	for _, dir := range dirs {
		// A process may end while it is looked at: then it is not there.
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
		out = append(out, process{host: host, inside: inside, name: strings.TrimSpace(string(name)), state: stateOf(dir), args: strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")})
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

// stateOf is how the kernel shows what a process does: its letter and where it waits.
func stateOf(dir string) string {
	stat, _ := os.ReadFile(dir + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	letter, _, _ := strings.Cut(rest, " ")
	waits, _ := os.ReadFile(dir + "/wchan")
	return letter + " " + string(waits)
}

// insidePID is the number that a process has in the innermost PID namespace.
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

// find is the one process of a container that is meant.
func (w *World) find(ctx context.Context, namespace, pod, container string, is func(process) bool) (process, error) {
	all, err := w.processes(ctx, namespace, pod, container)
	if err != nil {
		return process{}, err
	}
	for _, p := range all {
		if is(p) {
			return p, nil
		}
	}
	return process{}, fmt.Errorf("the process that is meant is not among the %d of pod %s", len(all), pod)
}

func numbered(inside int) func(process) bool {
	return func(p process) bool { return p.inside == inside }
}

// agent is the agent itself, not PID 1.
func agent(p process) bool {
	return p.inside != 1 && len(p.args) > 1 && filepath.Base(p.args[0]) == "holdfast-agent" && p.args[1] == "run"
}

// HostPID is the number that a process of a container has on this machine.
func (w *World) HostPID(ctx context.Context, namespace, pod, container string, inside int) (int, error) {
	p, err := w.find(ctx, namespace, pod, container, numbered(inside))
	return p.host, err
}

// Signal sends a signal to the one process of a container whose arguments are meant, never to its process 1.
func (w *World) Signal(ctx context.Context, namespace, pod, container string, sig syscall.Signal, is func(args []string) bool) error {
	p, err := w.find(ctx, namespace, pod, container, func(p process) bool { return p.inside != 1 && is(p.args) })
	if err != nil {
		return err
	}
	return p.signal(sig, pod)
}

func (p process) signal(sig syscall.Signal, pod string) error {
	if err := syscall.Kill(p.host, sig); err != nil {
		return fmt.Errorf("sending %s to process %d of pod %s: %w", sig, p.inside, pod, err)
	}
	return nil
}

// Runs says whether any process is left of a container, by its id.
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

// killInside sends SIGKILL to the process that has the given number inside the container, and says when.
func (w *World) killInside(ctx context.Context, namespace, pod, container string, inside int) (time.Time, error) {
	return w.kill(ctx, namespace, pod, container, numbered(inside))
}

func (w *World) killAgent(ctx context.Context, namespace, pod, container string) (time.Time, error) {
	return w.kill(ctx, namespace, pod, container, agent)
}

func (w *World) kill(ctx context.Context, namespace, pod, container string, is func(process) bool) (time.Time, error) {
	p, err := w.find(ctx, namespace, pod, container, is)
	if err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	return at, p.signal(syscall.SIGKILL, pod)
}
