package plugin

import (
	"cmp"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// turn is what a pod's place in the queue goes by, beside its priority. It is made when the pod enters the active queue
// and stays as it is until it leaves it: the queue is a heap, in which the order of two pods must not change.
type turn struct {
	// lost: others of its gang are on nodes and wait for it.
	lost bool
	// since is when the first pod of its gang was created.
	since time.Time
	gang  types.NamespacedName
	slot  int
}

func (t turn) compare(o turn) int {
	if t.lost != o.lost {
		if t.lost {
			return -1
		}
		return 1
	}
	return cmp.Or(t.since.Compare(o.since), cmp.Compare(t.gang.Namespace, o.gang.Namespace), cmp.Compare(t.gang.Name, o.gang.Name), cmp.Compare(t.slot, o.slot))
}

// turns are those of members in the queue. It is asked under the queue's lock, so its own is a leaf.
type turns struct {
	mu sync.Mutex
	of map[types.UID]turn
}

func (t *turns) note(uid types.UID, turn turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[uid] = turn
}

func (t *turns) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, uid)
}

func (t *turns) get(pod *v1.Pod) turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn, ok := t.of[pod.UID]; ok {
		return turn
	}
	return turn{since: pod.CreationTimestamp.Time, gang: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}
}

// Less says who goes first: by priority; who is waited for by others on nodes; the older gang; the lower slot. A pod of
// no gang is a gang of one.
func (p *Plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if one, other := a.GetPriority(), b.GetPriority(); one != other {
		return one > other
	}
	one, other := podOf(a), podOf(b)
	if one == nil || other == nil {
		return a.GetTimestamp().Before(b.GetTimestamp())
	}
	return p.turns.get(one).compare(p.turns.get(other)) < 0
}

func podOf(q fwk.QueuedEntityInfo) *v1.Pod {
	if q, ok := q.(interface{ GetPodInfo() fwk.PodInfo }); ok {
		return q.GetPodInfo().GetPod()
	}
	return nil
}

// turn is a member's turn as things are now.
func (l *ledger) turn(key types.NamespacedName, uid types.UID) (turn, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[key]
	if g == nil || g.members[uid] == nil {
		return turn{}, false
	}
	return turn{lost: g.lost(), since: g.began(), gang: key, slot: g.members[uid].slot.n}, true
}

// lost says whether members stand on nodes and wait for others, and the gang does not give its nodes back.
func (g *group) lost() bool {
	return g.counts[bound] > 0 && !g.fresh && g.counts[pending]+g.counts[planned] > 0
}

// began is when the first of the gang's pods was created.
func (g *group) began() time.Time {
	var first time.Time
	for _, m := range g.members {
		if created := m.pod.CreationTimestamp.Time; first.IsZero() || created.Before(first) {
			first = created
		}
	}
	return first
}
