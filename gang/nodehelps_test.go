package gang

import (
	"fmt"
	"testing"

	"holdfast.dev/holdfast/topology"
)

// An autoscaler adds nodes for a gang that is refused for lack of room, unless no number of nodes would help.
func TestNoNodeHelps(t *testing.T) {
	tree := func(used int) *topology.Tree {
		var nodes []topology.Node
		for i := range 16 {
			n := topology.Node{Name: fmt.Sprintf("n%02d", i), Domain: []string{"z", fmt.Sprintf("c%d", i/8)}, Free: topology.Resources{"gpu": 8}}
			if i < used {
				n.Used, n.Free = true, topology.Resources{}
			}
			nodes = append(nodes, n)
		}
		return topology.New([]topology.Level{{Name: topology.LevelZone}, {Name: topology.LevelNVLink}}, nodes...)
	}
	sized := func(size, gpus int, t Topology) Gang {
		g := Gang{Size: size, Topology: t, Roles: []Role{{Requests: topology.Resources{"gpu": int64(gpus)}}}}
		for slot := range size {
			g.Members = append(g.Members, Member{Slot: slot, Name: fmt.Sprintf("p%02d", slot)})
		}
		return g
	}
	sick := sized(12, 8, Topology{Required: topology.LevelNVLink})
	sick.Roles[0].Out = map[string]Cause{"n03": {Kind: Unhealthy, Name: "XidOffBus"}}
	standing := sized(9, 8, Topology{Required: topology.LevelNVLink})
	for i := range 8 {
		standing.Members[i].Node = fmt.Sprintf("n%02d", i)
	}
	for name, c := range map[string]struct {
		g    Gang
		used int
		want bool
	}{
		"more than there are":                   {sized(20, 8, Topology{}), 0, false},
		"each more than a node":                 {sized(2, 16, Topology{}), 0, false},
		"12 in one NVLink domain of 8":          {sized(12, 8, Topology{Required: topology.LevelNVLink}), 0, true},
		"the same by slices":                    {sized(24, 8, Topology{SliceLevel: topology.LevelNVLink, SliceSize: 12}), 0, true},
		"slices that fit, of which more wanted": {sized(24, 8, Topology{SliceLevel: topology.LevelNVLink, SliceSize: 8}), 0, false},
		"any slices":                            {sized(24, 8, Topology{SliceLevel: topology.LevelNVLink}), 0, false},
		"one node is used":                      {sized(12, 8, Topology{Required: topology.LevelNVLink}), 1, false},
		"one node is sick":                      {sick, 0, false},
		"a zone may grow":                       {sized(20, 8, Topology{Required: topology.LevelZone}), 0, false},
		"slices that cannot be":                 {sized(20, 8, Topology{SliceLevel: topology.LevelNVLink, SliceSize: 8}), 0, true},
		"the others' domain has no more":        {standing, 8, true},
	} {
		_, refusal := Place(tree(c.used), c.g)
		if refusal == nil || refusal.Reason != InsufficientNodes || refusal.NoNodeHelps != c.want {
			t.Errorf("%s: %+v, want %t", name, refusal, c.want)
		}
	}
}
