// Package layout computes all addresses, directories and names of a dev cluster from one small Spec. The Spec is
// written to disk before anything else of the cluster exists. The package does no I/O besides reading and writing that
// record.
package layout

import (
	"fmt"
	"path/filepath"
	"regexp"
)

// Spec is the whole definition of one cluster.
type Spec struct {
	Name string `json:"name"`
	// Dir holds all files of the cluster; removing the cluster removes it.
	Dir string `json:"dir"`
	// Octet gives the cluster 10.Octet.0.0/16, which nothing else on the machine uses.
	Octet int `json:"octet"`
	// Nodes is the number of real nodes, each a kubelet with its own containerd.
	Nodes int `json:"nodes"`
	// GPUsPerNode is the number of GPUs that a real node's simulated device plugin advertises.
	GPUsPerNode int `json:"gpusPerNode"`
	// Sim describes the simulated nodes.
	Sim Sim `json:"sim"`
	// PythonDir is offered to pods as a read-only volume; "": none.
	PythonDir string `json:"pythonDir,omitempty"`
	// ExtraArgs are further flags per component, such as "kube-apiserver".
	ExtraArgs map[string][]string `json:"extraArgs,omitempty"`
	// NodeLabels are put on every real node when it registers.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}

// Sim describes simulated nodes: objects with a lease and no machine.
type Sim struct {
	Nodes        int `json:"nodes"`
	GPUsPerNode  int `json:"gpusPerNode"`
	NodesPerRack int `json:"nodesPerRack"`
	RacksPerZone int `json:"racksPerZone"`
}

const (
	// MaxNodes is the most real nodes that the address plan allows.
	MaxNodes = 32
	// MaxName keeps the name of the host's link within the kernel's 15 bytes.
	MaxName = 11
	// APIPort is where the API server listens, in a network namespace of its own.
	APIPort = 6443
	// RouterGateway is the next hop of every node.
	RouterGateway = "169.254.1.1"
	// ClusterDomain is the DNS suffix of Services.
	ClusterDomain = "cluster.local"
	// PauseImage is the sandbox image of every node's containerd.
	PauseImage = "holdfast.dev/dev/pause:1"
	// BaseImage is the small training base image: a shell, core tools and shared libraries.
	BaseImage = "holdfast.dev/dev/base:1"
	// PythonStorageClass provides the Python folder as read-only local volumes.
	PythonStorageClass = "holdfast-python"
	// SharedStorageClass provides folders that all real nodes read and write.
	SharedStorageClass = "holdfast-shared"
	// SharedDir is the path of these folders inside every node.
	SharedDir = "/var/lib/holdfast-shared"
	// GPUResource is the extended resource of the simulated devices.
	GPUResource = "nvidia.com/gpu"
)

var nameForm = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)

// Validate refuses a Spec that cannot be built; the error names the option to change.
func (s *Spec) Validate() error {
	switch {
	case !nameForm.MatchString(s.Name) || len(s.Name) > MaxName:
		return fmt.Errorf("cluster name %q: use at most %d lower-case letters, digits and dashes, a letter first", s.Name, MaxName)
	case s.Nodes < 0 || s.Nodes > MaxNodes:
		return fmt.Errorf("%d real nodes: use 0 to %d", s.Nodes, MaxNodes)
	case s.Sim.Nodes < 0 || s.Sim.Nodes > 20000:
		return fmt.Errorf("%d simulated nodes: use 0 to 20000", s.Sim.Nodes)
	case s.Nodes+s.Sim.Nodes == 0:
		return fmt.Errorf("a cluster needs at least one real or simulated node")
	case s.GPUsPerNode < 0 || s.GPUsPerNode > 64 || s.Sim.GPUsPerNode < 0:
		return fmt.Errorf("GPUs per node: use 0 to 64")
	}
	return nil
}

func (s *Spec) addr(c, d int) string { return fmt.Sprintf("10.%d.%d.%d", s.Octet, c, d) }

// Supernet is the range of all addresses of the cluster.
func (s *Spec) Supernet() string { return s.addr(0, 0) + "/16" }

// HostIP is the machine's own address inside the cluster's network.
func (s *Spec) HostIP() string { return s.addr(0, 1) }

// ControlIP is the address of the API server and the DNS.
func (s *Spec) ControlIP() string { return s.addr(0, 2) }

// ServiceCIDR is the range of Service addresses.
func (s *Spec) ServiceCIDR() string { return s.addr(128, 0) + "/18" }

// KubernetesServiceIP is the Service address of the API server.
func (s *Spec) KubernetesServiceIP() string { return s.addr(128, 1) }

// DNSIP is the Service address of the cluster DNS.
func (s *Spec) DNSIP() string { return s.addr(128, 10) }

// PodCIDR is the range of all pods on real nodes.
func (s *Spec) PodCIDR() string { return s.addr(32, 0) + "/19" }

// NodeIP is the address of real node i, counted from 0.
func (s *Spec) NodeIP(i int) string { return s.addr(1, i+1) }

// NodePodCIDR is the range of the pods on real node i.
func (s *Spec) NodePodCIDR(i int) string { return s.addr(32+i, 0) + "/24" }

// NodeName is the name of real node i: n1, n2, ….
func (s *Spec) NodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// NodeIndex finds a real node by name.
func (s *Spec) NodeIndex(name string) (int, error) {
	for i := range s.Nodes {
		if s.NodeName(i) == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("cluster %s has no real node %q; it has n1 to n%d", s.Name, name, s.Nodes)
}

// APIURL is the address of the API server as seen from the machine and from pods.
func (s *Spec) APIURL() string { return fmt.Sprintf("https://%s:%d", s.ControlIP(), APIPort) }

// HostLink is the one link that the cluster adds to the machine.
func (s *Spec) HostLink() string { return "hf-" + s.Name }

// NodeLink is the router's end of the cable to real node i.
func (s *Spec) NodeLink(i int) string { return "v-" + s.NodeName(i) }

// CgroupPath is the cluster's path below every cgroup hierarchy.
func (s *Spec) CgroupPath() string { return "/hf/" + s.Name }

// NodeCgroup is the path below which node i's containers run.
func (s *Spec) NodeCgroup(i int) string { return s.CgroupPath() + "/" + s.NodeName(i) }

// Path joins a path inside the cluster's directory.
func (s *Spec) Path(elem ...string) string {
	return filepath.Join(append([]string{s.Dir}, elem...)...)
}

// Kubeconfig is the administrator's kubeconfig.
func (s *Spec) Kubeconfig() string { return s.Path("kubeconfig") }

// BinDir holds kubectl of the cluster's version.
func (s *Spec) BinDir() string { return s.Path("bin") }

// Env returns the lines that point a shell at the cluster.
func (s *Spec) Env() string {
	return fmt.Sprintf("export KUBECONFIG=%s\nexport PATH=%s:$PATH\n", s.Kubeconfig(), s.BinDir())
}

// PKI is a file of the cluster's own certificate authority.
func (s *Spec) PKI(name string) string { return s.Path("pki", name) }

// Log is the log file of a control plane component.
func (s *Spec) Log(component string) string { return s.Path("logs", component+".log") }

// NodePath joins a path inside real node i's directory.
func (s *Spec) NodePath(i int, elem ...string) string {
	return s.Path(append([]string{"nodes", s.NodeName(i)}, elem...)...)
}

// Shared joins a path below the folder that all real nodes see as SharedDir.
func (s *Spec) Shared(elem ...string) string {
	return s.Path(append([]string{"shared"}, elem...)...)
}

// ControlDir, inside a node, contains the files by which tests control the node from outside: Hold and GPUHealth. On the machine it is
// NodePath(i, "lib", "holdfast-dev").
const ControlDir = "/var/lib/holdfast-dev"

// KernelLogPipe, in ControlDir, receives lines for the node's kernel log.
const KernelLogPipe = "kernel-log"

// NodeControl is node i's ControlDir as seen from the machine.
func (s *Spec) NodeControl(i int, elem ...string) string {
	return s.NodePath(i, append([]string{"lib", "holdfast-dev"}, elem...)...)
}

// SimNodeName is the name of simulated node i: sim-0001, sim-0002, ….
func (s *Spec) SimNodeName(i int) string { return fmt.Sprintf("sim-%04d", i+1) }
