package topology

import "slices"

// Level is one level of the fabric, such as zone or rack. A Tree has its levels widest first, then the nodes.
type Level struct {
	// Name is the level's name for users. It is unique in a Tree.
	Name string
	// Key is the node label whose value is a node's domain. Values are compared, never parsed: some families hash long ones.
	Key string
}

// Names of the levels of known families. Several families have a level of the same name.
const (
	LevelRegion = "region"
	LevelZone   = "zone"
	LevelRack   = "rack"
	LevelNVLink = "nvlink"
)

// family is a set of labels that one source writes, widest first. A cluster has one family of each group: the families of a group are
// alternatives.
type family struct {
	group  group
	levels []Level
}

// group sorts families; groups nest in their order, widest first.
type group int

const (
	regions group = iota
	zones
	network
	racks
	accelerators
	groups
)

// families are the known ones, the most detailed first. docs/designs/placement.md lists their sources.
var families = []family{
	{regions, []Level{{LevelRegion, "topology.kubernetes.io/region"}}},
	{zones, []Level{{LevelZone, "topology.kubernetes.io/zone"}}},

	{network, []Level{{"tier-3", "fabric.topograph.run/tier-3"}, {"tier-2", "fabric.topograph.run/tier-2"},
		{"tier-1", "fabric.topograph.run/tier-1"}, {"tier-0", "fabric.topograph.run/tier-0"}}},
	{network, []Level{{"core", "network.topology.nvidia.com/core"}, {"spine", "network.topology.nvidia.com/spine"}, {"leaf", "network.topology.nvidia.com/leaf"}}},
	{network, []Level{{"core", "network.topology.nvidia.com/datacenter"}, {"spine", "network.topology.nvidia.com/spine"}, {"leaf", "network.topology.nvidia.com/block"}}},
	{network, []Level{{"block", "cloud.google.com/gce-topology-block"}, {"subblock", "cloud.google.com/gce-topology-subblock"}, {"host", "cloud.google.com/gce-topology-host"}}},
	{network, []Level{{"layer-1", "topology.k8s.aws/network-node-layer-1"}, {"layer-2", "topology.k8s.aws/network-node-layer-2"},
		{"layer-3", "topology.k8s.aws/network-node-layer-3"}, {"layer-4", "topology.k8s.aws/network-node-layer-4"}}},
	{network, []Level{{"island", "oci.oraclecloud.com/rdma.hpc_island_id"}, {"network-block", "oci.oraclecloud.com/rdma.network_block_id"},
		{"local-block", "oci.oraclecloud.com/rdma.local_block_id"}}},
	{network, []Level{{"fabric", "backend.coreweave.cloud/fabric"}, {"superpod", "backend.coreweave.cloud/superpod"}, {"leafgroup", "backend.coreweave.cloud/leafgroup"}}},
	{network, []Level{{"fabric", "ib.coreweave.cloud/fabric"}, {"superpod", "ib.coreweave.cloud/superpod"}, {"leafgroup", "ib.coreweave.cloud/leafgroup"}}},

	{racks, []Level{{LevelRack, "topology.kubernetes.io/rack"}}},
	{racks, []Level{{LevelRack, "node.coreweave.cloud/rack"}}},
	{racks, []Level{{LevelRack, "cloud.provider.com/topology-rack"}}},

	{accelerators, []Level{{LevelNVLink, "nvidia.com/gpu.clique"}}},
	{accelerators, []Level{{LevelNVLink, "accelerator.topograph.run/domain"}, {"nvlink-part", "accelerator.topograph.run/sub-domain"}}},
	{accelerators, []Level{{LevelNVLink, "network.topology.nvidia.com/accelerator"}}},
	{accelerators, []Level{{LevelNVLink, "ds.coreweave.com/nvlink.domain"}}},
	{accelerators, []Level{{LevelNVLink, "topology.k8s.aws/ultraserver-id"}}},
}

// KnownKeys returns the label keys that Recognise uses, sorted.
func KnownKeys() []string {
	var keys []string
	for _, f := range families {
		for _, l := range f.levels {
			keys = append(keys, l.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Recognise derives the levels of a cluster from how many nodes have each label key. Of the families of a group, it uses the one that
// covers most nodes; of equal ones the one with more labels, then the first in the list. It leaves out a level that no node has.
func Recognise(carried map[string]int) []Level {
	var levels []Level
	for g := range groups {
		best, most, sum := -1, 0, 0
		for i, f := range families {
			if n, all := f.carriers(carried); f.group == g && (n > most || n == most && all > sum) {
				best, most, sum = i, n, all
			}
		}
		if best < 0 {
			continue
		}
		for _, l := range families[best].levels {
			if carried[l.Key] > 0 {
				levels = append(levels, l)
			}
		}
	}
	return levels
}

// carriers returns the most nodes that have one of the family's labels, and the number of the family's labels on all nodes.
func (f family) carriers(carried map[string]int) (most, all int) {
	for _, l := range f.levels {
		most, all = max(most, carried[l.Key]), all+carried[l.Key]
	}
	return most, all
}
