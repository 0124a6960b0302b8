package host

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// PowerOff ends everything on a node at once and keeps it off.
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

// PowerOn lets a node that is off start again, with the disk it had.
func PowerOn(rec *layout.Record, node string) error {
	return gone(os.Remove(rec.Spec.Path("hold", node)))
}

// StopComponent ends a program of a node, such as kubelet, and keeps it down; what it started goes on.
func StopComponent(rec *layout.Record, i int, name string) error {
	if err := os.WriteFile(rec.Spec.NodeControl(i, "hold", name), nil, 0o644); err != nil {
		return err
	}
	return KillComponent(rec, i, name)
}

// KillComponent ends a program of a node, which starts it again.
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

// StartComponent lets a stopped program of a node start again.
func StartComponent(rec *layout.Record, i int, name string) error {
	return gone(os.Remove(rec.Spec.NodeControl(i, "hold", name)))
}

func kill(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	return nil
}

func gone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
