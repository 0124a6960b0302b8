package fabric

import (
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/golden"
)

func TestText(t *testing.T) {
	full := v1alpha1.FabricResponse{Nodes: 36, Levels: []v1alpha1.FabricLevel{
		{Level: "zone", Domains: 1, Free: 27, Broken: 27, Largest: 27},
		{Level: "rack", Domains: 2, Whole: 0, Free: 27, Broken: 27, Largest: 17, Freed: []v1alpha1.FreedDomain{
			{Domain: "a/r2", Nodes: 18, Used: 1, Pods: 1, Moves: []v1alpha1.FabricMove{{Unit: "pod team-a/web", Pods: []v1alpha1.PodMove{{From: "n19", To: "n4"}}}}},
			{Domain: "a/r1", Nodes: 18, Used: 8, Pods: 3, Moves: []v1alpha1.FabricMove{
				{Unit: "gang team-a/train", Pods: []v1alpha1.PodMove{{From: "n1", To: "n20"}, {From: "n2", To: "n21"}}}, {Unit: "pod team-b/x", Pods: []v1alpha1.PodMove{{From: "n3", To: "n22"}}}}},
		}}}}
	golden.File(t, "testdata/full.txt", Text(full, false))
	golden.File(t, "testdata/none.txt", Text(v1alpha1.FabricResponse{Nodes: 1}, false))
	stopped := v1alpha1.FabricResponse{
		Nodes:   2,
		Levels:  []v1alpha1.FabricLevel{{Level: "rack", Domains: 2, Whole: 1, Free: 1, Largest: 1}},
		Stopped: true,
	}
	golden.File(t, "testdata/stopped.txt", Text(stopped, false))
}
