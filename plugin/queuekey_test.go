package plugin

import (
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// Pods in the queue are ordered by priority, then pods for which other members wait on their nodes, then by the oldest pod of the gang.
// Members of a gang are next to each other.
func TestWhoseTurnItIs(t *testing.T) {
	p := &Plugin{gangs: newCache(), queueKeys: &queueKeys{of: map[types.UID]gangcache.QueueKey{}}}
	created := func(pod *v1.Pod, priority int32, second int64) *v1.Pod {
		pod.CreationTimestamp, pod.Spec.Priority = metav1.NewTime(at(second)), &priority
		return pod
	}
	var queue []fwk.QueuedEntityInfo
	add := func(pod *v1.Pod, queued time.Time) {
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		queue = append(queue, &framework.QueuedPodInfo{PodInfo: info, QueueingParams: framework.QueueingParams{Timestamp: queued}})
	}
	var members []*v1.Pod
	for slot := range 3 {
		members = append(members, created(memberPod("old", slot, 3, 2), 1, 10+int64(slot)*100))
	}
	for slot := range 2 {
		members = append(members, created(memberPod("young", slot, 2, 2), 1, 20))
	}
	members = append(members, on(created(memberPod("hurt", 0, 2, 2), 1, 90), "a"), created(memberPod("hurt", 1, 2, 2), 1, 90))
	for _, m := range members {
		p.gangs.Observe(key(m.Labels["holdfast.dev/gang"]), m)
	}
	for _, m := range members {
		if m.Spec.NodeName == "" {
			key, _ := p.gangs.QueueKey(key(m.Labels["holdfast.dev/gang"]), m.UID)
			p.queueKeys.note(m.UID, key)
			add(m, time.Now().Add(-time.Duration(rand.Intn(1000))*time.Second))
		}
	}
	add(created(pod("plain", 1), 1, 15), time.Now())
	add(created(pod("urgent", 1), 2, 500), time.Now())
	want := "urgent hurt-1 old-0 old-1 old-2 plain young-0 young-1"
	for range 20 {
		rand.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		slices.SortFunc(queue, func(a, b fwk.QueuedEntityInfo) int {
			switch {
			case p.Less(a, b):
				return -1
			case p.Less(b, a):
				return 1
			}
			return 0
		})
		var got []string
		for _, q := range queue {
			got = append(got, podOf(q).Name)
		}
		if strings.Join(got, " ") != want {
			t.Fatalf("%v, want %s", got, want)
		}
	}
}
