package plugin

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/topology"
)

// BenchmarkEligibility is what it costs to ask the framework's filters about one role on 5,000 nodes: all of them, as with the
// first gang of a shape and after a start; none, as they are remembered; and all of them where a rule among pods keeps that
// from being remembered.
func BenchmarkEligibility(b *testing.B) {
	const nodes = 5000
	var objects []runtime.Object
	for i := range nodes {
		objects = append(objects, node(fmt.Sprintf("node-%05d", i), 8))
	}
	w := newWorld(b, extras{}, objects...)
	w.attempted()
	ask := func(b *testing.B, pod *v1.Pod, forget bool) {
		err := w.station.between(w.ctx, func() (*Plugin, error) { return w.plugin, nil }, func(ctx context.Context, p *Plugin) error {
			all, err := p.handle.SnapshotSharedLister().NodeInfos().List()
			if err != nil {
				return err
			}
			p.follow(all)
			r := gangcache.Snapshot{Size: 1, Members: []gangcache.Member{{Pod: pod, Role: roleOf(pod)}}}
			for b.Loop() {
				if forget {
					p.verdicts.roles = nil
				}
				s := newScout(context.WithoutCancel(ctx), p, all, r)
				g, _, err := s.gang()
				if err != nil || len(g.Roles[0].Out) != 0 {
					return fmt.Errorf("%d nodes are ruled out, %w", len(g.Roles[0].Out), err)
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	apart := memberPod("apart", 0, 1, 8)
	apart.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{
		{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}}}}}}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		forget bool
	}{{"all", memberPod("g", 0, 1, 8), true}, {"remembered", memberPod("g", 0, 1, 8), false}, {"antiaffinity", apart, false}} {
		b.Run(c.name, func(b *testing.B) { ask(b, c.pod, c.forget) })
	}
}

func TestShown(t *testing.T) {
	got := shown(topology.Resources{"cpu": 500, "memory": 2 << 30, "nvidia.com/gpu": 8})
	if want := map[string]string{"cpu": "500m", "memory": "2Gi", "nvidia.com/gpu": "8"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
