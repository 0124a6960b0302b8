package plugin

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"holdfast.dev/holdfast/plugin/gangcache"
)

// queueKeys caches the keys of queued members. It is read under the queue's lock, so its own lock is a leaf.
type queueKeys struct {
	mu sync.Mutex
	of map[types.UID]gangcache.QueueKey
}

func (t *queueKeys) note(uid types.UID, key gangcache.QueueKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[uid] = key
}

func (t *queueKeys) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, uid)
}

func (t *queueKeys) get(pod *v1.Pod) gangcache.QueueKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key, ok := t.of[pod.UID]; ok {
		return key
	}
	return gangcache.QueueKey{Since: pod.CreationTimestamp.Time, Gang: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
}

// Less orders pods: by priority; then pods that members on nodes wait for; then the older gang; then the lower slot. A pod of no gang is a
// gang of one.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if one, other := a.GetPriority(), b.GetPriority(); one != other {
		return one > other
	}
	one, other := podOf(a), podOf(b)
	if one == nil || other == nil {
		return a.GetTimestamp().Before(b.GetTimestamp())
	}
	return p.queueKeys.get(one).Compare(p.queueKeys.get(other)) < 0
}

func podOf(q fwk.QueuedEntityInfo) *v1.Pod {
	if q, ok := q.(interface{ GetPodInfo() fwk.PodInfo }); ok {
		return q.GetPodInfo().GetPod()
	}
	return nil
}
