// Package node is process 1 of a real node. In mount, process, network and host name namespaces of its own it runs
// containerd, kubelet, kube-proxy and a device plugin with simulated GPUs, and restarts each one that ends. When
// process 1 dies, the kernel kills all processes of the node, as if a machine lost power.
package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/test/devcluster/gpu"
	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/wire"
)

// The supervisor's orders to a node, one line each.
const (
	// Wired: the node's link exists.
	Wired = "wired"
	// Join: the API server responds, the kubelet may start.
	Join = "join"
)

// Self is the path by which the node runs this binary under another name.
const Self = "/proc/self/exe"

// Enter moves the process into node i's cgroup, makes that the root of a cgroup namespace and executes args. A namespace belongs to single
// threads, so only a new program has it in all threads.
func Enter(s *layout.Spec, i int, args []string) error {
	runtime.LockOSThread()
	if err := host.JoinCgroups(s.NodeCgroup(i), "", 0); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	return fmt.Errorf("starting over: %w", unix.Exec(Self, args, os.Environ()))
}

// Init runs node i until the end of the process. The supervisor sends orders.
func Init(s *layout.Spec, i int, orders *os.File, pauseTar []byte) error {
	if err := os.MkdirAll(s.NodePath(i), 0o755); err != nil {
		return err
	}
	if err := enterRoot(s, i); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.NodeName(i))); err != nil {
		return err
	}
	if err := wire.Forward(); err != nil {
		return err
	}
	if err := writeConfigs(s, i); err != nil {
		return err
	}
	n := &node{spec: s, index: i, procs: newProcs(), orders: bufio.NewScanner(orders)}
	return n.run(pauseTar)
}

type node struct {
	spec   *layout.Spec
	index  int
	procs  *procs
	orders *bufio.Scanner
}

func (n *node) run(pauseTar []byte) error {
	if err := n.await(Wired); err != nil {
		return err
	}
	if err := n.keep("/usr/bin/containerd", "containerd", "--config", "/etc/containerd/config.toml"); err != nil {
		return err
	}
	if err := n.importPause(pauseTar); err != nil {
		return err
	}
	if err := n.await(Join); err != nil {
		return err
	}
	args := []string{
		"--config=/etc/kubernetes/kubelet.json", "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
		"--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki",
		"--hostname-override=" + n.spec.NodeName(n.index), "--node-ip=" + n.spec.NodeIP(n.index),
		"--node-labels=" + nodeLabels(n.spec),
	}
	if err := n.keep(Self, "kubelet", append(args, n.spec.ExtraArgs["kubelet"]...)...); err != nil {
		return err
	}
	if err := n.keep(Self, "kube-proxy", "--config=/etc/kubernetes/proxy.json"); err != nil {
		return err
	}
	if n.spec.GPUsPerNode > 0 {
		log, err := openLog("gpu-plugin")
		if err != nil {
			return err
		}
		if err := serveDriver(n.spec, n.index, log); err != nil {
			return fmt.Errorf("pretending the NVIDIA driver: %w", err)
		}
		p := gpu.New(n.spec.NodeName(n.index), n.spec.GPUsPerNode, filepath.Join(layout.ControlDir, gpu.HealthFile), log)
		go p.Run()
	}
	for n.orders.Scan() {
		continue // there are no more orders; the end of the file is the end of the supervisor
	}
	return fmt.Errorf("the supervisor is gone")
}

// await blocks until the supervisor has given the order.
func (n *node) await(order string) error {
	for n.orders.Scan() {
		if n.orders.Text() == order {
			return nil
		}
	}
	return fmt.Errorf("the supervisor ended before it said %q", order)
}

func (n *node) keep(path, name string, args ...string) error {
	log, err := openLog(name)
	if err != nil {
		return err
	}
	hold := filepath.Join(layout.ControlDir, "hold", name)
	go n.procs.keep(path, append([]string{name}, args...), log, func() bool {
		_, err := os.Stat(hold)
		return err == nil
	})
	return nil
}

func (n *node) importPause(tar []byte) error {
	if err := awaitSocket(containerdSocket, time.Minute); err != nil {
		return err
	}
	log, err := openLog("import")
	if err != nil {
		return err
	}
	defer log.Close()
	const file = "/run/pause.tar"
	if err := os.WriteFile(file, tar, 0o600); err != nil {
		return err
	}
	return n.procs.run("/usr/bin/ctr", []string{"ctr", "-a", containerdSocket, "-n", "k8s.io", "images", "import", file}, log)
}

func awaitSocket(path string, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("unix", path)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for %s: %w; see containerd.log of the node", path, err)
		}
	}
}

func openLog(name string) (*os.File, error) {
	return os.OpenFile("/var/log/"+name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}
