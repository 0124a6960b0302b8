package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// PowerOff ends all processes of a node at once and keeps it off.
func PowerOff(rec *layout.Record, node string) error {
	if err := os.WriteFile(rec.Spec.Path("hold", node), nil, 0o644); err != nil {
		return err
	}
	pid, err := NodeInit(rec, node)
	if err != nil || pid == 0 {
		return err
	}
	return kill(pid)
}

// PowerOn starts a node that is off, with the disk it had, or a killed one.
func PowerOn(rec *layout.Record, i int) error {
	for _, name := range killed {
		hold := rec.Spec.NodeControl(i, "hold", name)
		if b, err := os.ReadFile(hold); err != nil || string(b) != killMark {
			continue // not held, or by another caller
		}
		if err := gone(os.Remove(hold)); err != nil {
			return err
		}
	}
	return gone(os.Remove(rec.Spec.Path("hold", rec.Spec.NodeName(i))))
}

// killed are the programs that KillNode keeps down; the mark distinguishes its hold files from other callers'.
var killed = []string{"kubelet", "containerd"}

const killMark = "killed"

// KillNode kills kubelet, containerd and all containers of node i and keeps them down; the node's kernel, network and kube-proxy continue.
func KillNode(rec *layout.Record, i int) error {
	name := rec.Spec.NodeName(i)
	root, err := NodeInit(rec, name)
	if err != nil {
		return err
	}
	if root == 0 {
		return fmt.Errorf("node %s is off: nothing runs there", name)
	}
	for _, component := range killed {
		hold := rec.Spec.NodeControl(i, "hold", component)
		if _, err := os.Stat(hold); err == nil {
			continue
		}
		if err := os.WriteFile(hold, []byte(killMark), 0o644); err != nil {
			return err
		}
	}
	// All are stopped first: none may report the death of another.
	seen := map[int]bool{}
	for more := true; more; {
		all, err := pending(root)
		if err != nil {
			return err
		}
		more = false
		for _, pid := range all {
			if !seen[pid] {
				seen[pid], more = true, true
				if err := signal(pid, syscall.SIGSTOP); err != nil {
					return err
				}
			}
		}
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		all, err := pending(root)
		if err != nil || len(all) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of node %s do not end", len(all), name)
		}
		for _, pid := range all {
			if err := kill(pid); err != nil {
				return err
			}
		}
	}
}

// pending lists the processes below a node's process 1, except kube-proxy.
func pending(root int) ([]int, error) {
	all, err := Descendants(root)
	if err != nil {
		return nil, err
	}
	spared := map[int]bool{}
	var out []int
	for _, c := range all { // parents come before their children
		if spared[c.Parent] || c.Parent == root && filepath.Base(c.Args[0]) == "kube-proxy" {
			spared[c.PID] = true
		} else {
			out = append(out, c.PID)
		}
	}
	return out, nil
}

// StopComponent ends a program of a node, such as kubelet, and keeps it down; its children continue.
func StopComponent(rec *layout.Record, i int, name string) error {
	if err := os.WriteFile(rec.Spec.NodeControl(i, "hold", name), nil, 0o644); err != nil {
		return err
	}
	return KillComponent(rec, i, name)
}

// KillComponent ends a program of a node, which then restarts it.
func KillComponent(rec *layout.Record, i int, name string) error {
	pid, err := NodeComponent(rec, rec.Spec.NodeName(i), name)
	if err != nil {
		return err
	}
	if pid == 0 {
		return fmt.Errorf("no %s runs on node %s", name, rec.Spec.NodeName(i))
	}
	return kill(pid)
}

// StartComponent allows a stopped program of a node to start again.
func StartComponent(rec *layout.Record, i int, name string) error {
	return gone(os.Remove(rec.Spec.NodeControl(i, "hold", name)))
}

// StopProgram ends a program of the control plane, such as kube-apiserver, by SIGKILL and keeps it down.
func StopProgram(rec *layout.Record, name string) error {
	if !Alive(rec.Supervisor) {
		return fmt.Errorf("cluster %s is not running", rec.Spec.Name)
	}
	all, err := Descendants(rec.Supervisor.PID)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Parent != rec.Supervisor.PID || c.Args[0] != name {
			continue
		}
		if err := os.WriteFile(rec.Spec.Path("hold", name), nil, 0o644); err != nil {
			return err
		}
		return kill(c.PID)
	}
	return fmt.Errorf("no %s runs in the control plane of cluster %s", name, rec.Spec.Name)
}

// StartProgram allows a stopped program of the control plane to start again.
func StartProgram(rec *layout.Record, name string) error {
	return gone(os.Remove(rec.Spec.Path("hold", name)))
}

func kill(pid int) error { return signal(pid, syscall.SIGKILL) }

// signal signals a process; it is no error if the process has ended.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %s to process %d: %w", sig, pid, err)
	}
	return nil
}

func gone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
