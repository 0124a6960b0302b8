package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/node"
	"holdfast.dev/holdfast/test/devcluster/wire"
)

const (
	restartAfter = time.Second
	// nodeTimeout bounds the end of a dead node's processes.
	nodeTimeout = 20 * time.Second
)

// keep runs a control plane program and restarts it when it ends, unless a file of its name lies in the cluster's "hold" directory.
func keep(s *layout.Spec, c command) error {
	log, err := os.OpenFile(s.Log(c.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	go func() {
		for {
			awaitNoHold(s, c.name)
			cmd := exec.Command(node.Self, c.args...)
			cmd.Args[0] = c.name
			cmd.Stdout, cmd.Stderr = log, log
			err := cmd.Run()
			fmt.Fprintf(log, "supervisor: %s ended: %v\n", c.name, err)
			time.Sleep(restartAfter)
		}
	}()
	return nil
}

func awaitNoHold(s *layout.Spec, name string) {
	for {
		if _, err := os.Stat(filepath.Join(s.Dir, "hold", name)); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// keepNode runs a node's process 1 and restarts it when it ends, like a machine that is switched on again. join closes when the API server
// responds.
func keepNode(s *layout.Spec, i int, join <-chan struct{}) error {
	log, err := os.OpenFile(s.Log(s.NodeName(i)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	go func() {
		for {
			awaitNoHold(s, s.NodeName(i))
			if err := runNode(s, i, join, log); err != nil {
				fmt.Fprintf(log, "supervisor: node %s: %v\n", s.NodeName(i), err)
			}
			time.Sleep(restartAfter)
		}
	}()
	return nil
}

func runNode(s *layout.Spec, i int, join <-chan struct{}, log *os.File) error {
	if err := freshCgroup(s, i); err != nil {
		return err
	}
	orders, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer tell.Close()
	cmd := exec.Command(node.Self, "node-enter", s.Dir, s.NodeName(i))
	cmd.Args[0] = "holdfast-dev"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{orders}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	err = cmd.Start()
	orders.Close()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := wire.Node(s, i, cmd.Process.Pid); err != nil {
		fmt.Fprintln(log, "supervisor:", err)
		_ = cmd.Process.Kill()
		return <-ended
	}
	fmt.Fprintln(tell, node.Wired)
	select {
	case <-join:
		fmt.Fprintln(tell, node.Join)
	case err := <-ended:
		return err
	}
	return <-ended
}

// freshCgroup gives node i an empty cgroup and removes what its previous run left there.
func freshCgroup(s *layout.Spec, i int) error {
	dirs, err := host.CgroupDirs(s.NodeCgroup(i))
	if err != nil {
		return err
	}
	if err := host.RemoveCgroups(dirs, time.Now().Add(nodeTimeout)); err != nil {
		return err
	}
	return host.MakeCgroups(s.NodeCgroup(i))
}
