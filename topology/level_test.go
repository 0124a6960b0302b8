package topology

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
)

func TestRecognise(t *testing.T) {
	names := func(levels []Level) (all []string) {
		for _, l := range levels {
			all = append(all, l.Name)
		}
		return all
	}
	for name, c := range map[string]struct {
		carried map[string]int
		want    []string
	}{
		"nothing":    {nil, nil},
		"plain zone": {map[string]int{"topology.kubernetes.io/zone": 5}, []string{"zone"}},
		"GKE": {map[string]int{"topology.kubernetes.io/region": 9, "topology.kubernetes.io/zone": 9, "cloud.google.com/gce-topology-block": 8, "cloud.google.com/gce-topology-subblock": 8,
			"cloud.google.com/gce-topology-host": 8, "nvidia.com/gpu.clique": 4}, []string{"region", "zone", "block", "subblock", "host", "nvlink"}},
		"AWS, widest first": {map[string]int{"topology.k8s.aws/network-node-layer-3": 3, "topology.k8s.aws/network-node-layer-1": 3, "topology.k8s.aws/network-node-layer-2": 3}, []string{"layer-1", "layer-2", "layer-3"}},
		"Topograph of old":  {map[string]int{"network.topology.nvidia.com/block": 3, "network.topology.nvidia.com/spine": 3, "network.topology.nvidia.com/accelerator": 2}, []string{"spine", "leaf", "nvlink"}},
		"Topograph beside the cloud's own, which fewer nodes carry": {map[string]int{"network.topology.nvidia.com/leaf": 5, "topology.k8s.aws/network-node-layer-1": 4}, []string{"leaf"}},
		"CoreWeave": {map[string]int{"backend.coreweave.cloud/leafgroup": 2, "backend.coreweave.cloud/fabric": 2, "ib.coreweave.cloud/fabric": 2, "ds.coreweave.com/nvlink.domain": 2, "node.coreweave.cloud/rack": 2},
			[]string{"fabric", "leafgroup", "rack", "nvlink"}},
		"OCI": {map[string]int{"oci.oraclecloud.com/rdma.hpc_island_id": 1, "oci.oraclecloud.com/rdma.local_block_id": 1, "oci.oraclecloud.com/rdma.network_block_id": 1}, []string{"island", "network-block", "local-block"}},
	} {
		if got := names(Recognise(c.carried)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	equals := map[string]int{"node.coreweave.cloud/rack": 5, "topology.kubernetes.io/rack": 5, "cloud.provider.com/topology-rack": 5}
	if got, want := Recognise(equals), []Level{{LevelRack, "topology.kubernetes.io/rack"}}; !slices.Equal(got, want) {
		t.Errorf("of equals %v, want the first in the list, %v", got, want)
	}
	keys := KnownKeys()
	if len(keys) > 64 || !slices.IsSorted(keys) {
		t.Errorf("%d keys", len(keys))
	}
	for key := range equals {
		if !slices.Contains(keys, key) {
			t.Errorf("%s is not looked at", key)
		}
	}
}

// After any history of nodes and of Take, the updated counts equal counts that are computed from the beginning.
func TestIndexesKeepUp(t *testing.T) {
	levels := []Level{{Name: "zone"}, {Name: "rack"}}
	shapes := []Shape{{Requests: Resources{"gpu": 1}}, {Requests: Resources{"gpu": 2, "cpu": 1}, Whole: true}, {Requests: Resources{"cpu": 3}}}
	for seed := range seeds.All(t, int64(300)) {
		rng := rand.New(rand.NewSource(seed))
		tree, known := New(levels), map[string]Node{}
		for range 40 {
			name := fmt.Sprint("n", rng.Intn(8))
			switch rng.Intn(4) {
			case 0:
				tree.Remove(name)
				delete(known, name)
			default:
				n := Node{
					Name:      name,
					Domain:    []string{fmt.Sprint(rng.Intn(2)), fmt.Sprint(rng.Intn(3))},
					Used:      rng.Intn(2) == 0,
					Tenants:   rng.Intn(2),
					Exclusive: rng.Intn(5) == 0,
					Spares:    rng.Intn(2),
					Free:      Resources{"gpu": int64(rng.Intn(5)), "cpu": int64(rng.Intn(7) - 1)},
				}
				tree.Set(n)
				known[name] = n
			}
			shape := shapes[rng.Intn(len(shapes))]
			tree.Index(shape)
			mark := tree.Mark()
			for i := range tree.All() {
				switch rng.Intn(4) {
				case 0, 1:
					tree.Force(i, Resources{"gpu": 1})
				case 2:
					tree.Assume(i, Usage{Resources: Resources{"gpu": 1}, Tenant: rng.Intn(3) > 0, Exclusive: rng.Intn(3) == 0, Spares: rng.Intn(3)})
				}
			}
			same(t, seed, tree, shape)
			tree.Undo(mark)
			var nodes []Node
			for _, n := range known {
				nodes = append(nodes, n)
			}
			anew := New(levels, nodes...)
			if got, want := view(tree, shape), view(anew, shape); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %v, counted anew %v", seed, got, want)
			}
		}
	}
}

// same compares a stored index with a new one.
func same(t *testing.T, seed int64, tree *Tree, shape Shape) {
	t.Helper()
	kept := view(tree, shape)
	tree.indexes = nil
	if anew := view(tree, shape); !reflect.DeepEqual(kept, anew) {
		t.Fatalf("seed %d: %v, counted anew %v", seed, kept, anew)
	}
}

// view returns everything that a tree has for a shape, by name.
func view(tree *Tree, shape Shape) map[string][]int32 {
	x := tree.Index(shape)
	all := map[string][]int32{}
	for i := range tree.All() {
		spares, _ := tree.Promised(i)
		all["node "+tree.Name(i)] = []int32{x.Room[i], flag(tree.Used(i)), int32(tree.Tenants(i)), flag(tree.Exclusive(i)), int32(spares)}
	}
	for level := -1; level < len(tree.Levels()); level++ {
		for _, d := range tree.Domains(level) {
			all["domain "+tree.Path(d)] = []int32{x.Places[d], x.Open[d], int32(tree.Size(d)), flag(tree.Whole(d)), flag(tree.Claimed(d))}
		}
	}
	return all
}
