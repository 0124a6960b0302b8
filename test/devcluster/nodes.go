package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"holdfast.dev/holdfast/test/devcluster/enter"
	"holdfast.dev/holdfast/test/devcluster/gpu"
	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/devcluster/logind"
	"holdfast.dev/holdfast/test/devcluster/nvml"
)

// Load imports images into all real nodes.
func (c *Cluster) Load(ctx context.Context, images ...*image.Image) error {
	return c.LoadInto(ctx, c.Nodes(), images...)
}

// LoadInto imports images into some nodes.
func (c *Cluster) LoadInto(ctx context.Context, nodes []*Node, images ...*image.Image) error {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	for _, img := range images {
		tar, err := img.Tar()
		if err != nil {
			return err
		}
		if err := enter.ImportAll(ctx, c.record, names, tar); err != nil {
			return fmt.Errorf("loading %s: %w", img.Name, err)
		}
	}
	return nil
}

// SharedPath is the path on this machine of the folder behind a bound claim of class layout.SharedStorageClass.
func (c *Cluster) SharedPath(ctx context.Context, namespace, claim string) (string, error) {
	volume, err := c.Kubectl(ctx, "get", "persistentvolumeclaim", "-n", namespace, claim, "-o", "jsonpath={.spec.volumeName}")
	if err != nil {
		return "", err
	}
	if volume == "" {
		return "", fmt.Errorf("claim %s/%s is not bound yet", namespace, claim)
	}
	return c.record.Spec.Shared(volume), nil
}

// Node is a real node.
type Node struct {
	c     *Cluster
	index int
	// Name is the node's name, such as n1.
	Name string
}

// Nodes are all real nodes.
func (c *Cluster) Nodes() []*Node {
	var out []*Node
	for i := range c.record.Spec.Nodes {
		out = append(out, &Node{c: c, index: i, Name: c.record.Spec.NodeName(i)})
	}
	return out
}

// Node returns a real node; it panics if there is none of that name, which is a mistake in the test.
func (c *Cluster) Node(name string) *Node {
	i, err := c.record.Spec.NodeIndex(name)
	if err != nil {
		panic(err)
	}
	return c.Nodes()[i]
}

// Exec runs a command inside the node, as a shell on that machine would.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	cmd, err := enter.Node(ctx, n.c.record, n.Name, args...)
	if err != nil {
		return "", err
	}
	return output(cmd)
}

// Cut drops all traffic to and from the node.
func (n *Node) Cut(ctx context.Context) error { return enter.Cut(ctx, n.c.record, n.index, true) }

// Mend stops dropping the traffic.
func (n *Node) Mend(ctx context.Context) error { return enter.Cut(ctx, n.c.record, n.index, false) }

// PowerOff ends all processes of the node at once.
func (n *Node) PowerOff() error { return host.PowerOff(n.c.record, n.Name) }

// PowerOn starts the node again with the disk it had.
func (n *Node) PowerOn() error { return host.PowerOn(n.c.record, n.index) }

// Kill ends kubelet, containerd and all containers of the node at once, without a shutdown, and keeps them down; its kernel and network
// continue.
func (n *Node) Kill() error { return host.KillNode(n.c.record, n.index) }

// Revive starts a killed node again.
func (n *Node) Revive() error { return host.PowerOn(n.c.record, n.index) }

// StopKubelet ends the kubelet and keeps it down; the pods continue.
func (n *Node) StopKubelet() error { return host.StopComponent(n.c.record, n.index, "kubelet") }

// StartKubelet starts a stopped kubelet.
func (n *Node) StartKubelet() error { return host.StartComponent(n.c.record, n.index, "kubelet") }

// KillKubelet ends the kubelet, which the node starts again.
func (n *Node) KillKubelet() error { return host.KillComponent(n.c.record, n.index, "kubelet") }

// ConfigureKubelet changes fields of the kubelet's configuration file, removes those that are nil, and restarts the kubelet.
func (n *Node) ConfigureKubelet(ctx context.Context, fields map[string]any) error {
	text, err := n.Exec(ctx, "cat", kubeletConfig)
	if err != nil {
		return err
	}
	config := map[string]any{}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	for k, v := range fields {
		if config[k] = v; v == nil {
			delete(config, k)
		}
	}
	changed, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if _, err := n.Exec(ctx, "sh", "-c", `printf %s "$1" > "$2"`, "sh", string(changed), kubeletConfig); err != nil {
		return err
	}
	return n.KillKubelet()
}

// kubeletConfig is the path of the kubelet's configuration in a node.
const kubeletConfig = "/etc/kubernetes/kubelet.json"

// Logind gives the node a simulated logind until it is closed. A kubelet that starts later and has a shutdownGracePeriod uses it.
func (n *Node) Logind(ctx context.Context) (*logind.Logind, error) {
	const socket = "/tmp/system_bus_socket" // the node's /run is not visible from outside
	if _, err := n.Exec(ctx, "sh", "-c", "mkdir -p /run/dbus && ln -sf "+socket+" /run/dbus/system_bus_socket"); err != nil {
		return nil, err
	}
	return logind.Serve(n.Path(socket))
}

// IP is the node's address.
func (n *Node) IP() string { return n.c.record.Spec.NodeIP(n.index) }

// LogKernel makes the node's kernel log one line, such as "<3>NVRM: Xid (PCI:0000:01:00): 79, …".
func (n *Node) LogKernel(line string) error { return host.LogKernel(n.c.record, n.index, line) }

// Path is the path on this machine of a file below the node's /var/lib, /var/log, /etc or /tmp; other files are the machine's own.
func (n *Node) Path(inside string) string {
	for prefix, dir := range map[string]string{"/var/lib/": "lib", "/var/log/": "log", "/etc/": "etc", "/tmp/": "tmp"} {
		if rest, ok := strings.CutPrefix(inside, prefix); ok {
			return n.c.record.Spec.NodePath(n.index, dir, rest)
		}
	}
	return inside
}

// GPU is the id of the node's device i.
func (n *Node) GPU(i int) string { return gpu.ID(n.Name, i) }

// Fail makes a GPU fail in NVML, kernel log and device plugin.
func (n *Node) Fail(f nvml.Fault) error { return host.FailGPU(n.c.record, n.index, f) }

// Heal makes all GPUs healthy again.
func (n *Node) Heal() error { return n.Fail(nvml.Fault{}) }

// SetSickGPUs makes exactly these devices Unhealthy.
func (n *Node) SetSickGPUs(ids ...string) error {
	return os.WriteFile(n.c.record.Spec.NodeControl(n.index, gpu.HealthFile), []byte(strings.Join(ids, "\n")), 0o644)
}
