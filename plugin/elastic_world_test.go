package plugin

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/seeds"
)

// mix is a world with jobs that need all of their pods beside elastic ones, each pod on a node of its own, and the placement that the order
// of waiting demands: whatever has waited longest and fits gets nodes.
type mix struct {
	*world
	rng  *rand.Rand
	free int
	jobs []*mixed
	made int
}

// mixed is a job. Those of its pods that exist have a place in on, by name: whether they are on a node.
type mixed struct {
	name        string
	size, least int
	on          map[string]bool
	since       map[string]int
}

func (j *mixed) elastic() bool { return j.least < j.size }

// names returns the pods that have a node, or those that have none, the oldest first.
func (j *mixed) names(on bool) (all []string) {
	for name, has := range j.on {
		if has == on {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(j.since[a], j.since[b]), cmp.Compare(a, b)) })
	return all
}

// add creates the pod of a slot. Each pod is a second younger than the one before.
func (m *mix) add(j *mixed, slot int) {
	p := memberPod(j.name, slot, j.size, 2)
	if m.made++; m.made > j.size {
		p.Name += fmt.Sprintf("-%d", m.made)
	}
	if j.elastic() {
		elasticPod(p, j.least)
	}
	j.on[p.Name], j.since[p.Name] = false, m.made
	m.create(created(p, ago(1000-m.made)))
}

func (m *mix) arrive(size, least int) {
	j := &mixed{name: fmt.Sprint("j", len(m.jobs)), size: size, least: least, on: map[string]bool{}, since: map[string]int{}}
	m.jobs = append(m.jobs, j)
	for slot := range size {
		m.add(j, slot)
	}
	m.settle()
}

// settle waits until the pods that should have nodes have them, and no others.
func (m *mix) settle() {
	m.t.Helper()
	for m.placeOne() {
	}
	m.until("the pods that have waited longest to be placed", func() bool {
		for _, j := range m.jobs {
			for name, has := range j.on {
				if (m.where(name) != "") != has {
					return false
				}
			}
		}
		return true
	})
	if m.plugin.reservations.Any() || len(m.whoLeft()) > 0 {
		m.t.Fatalf("room is held: %v, %v were preempted", m.plugin.reservations.Any(), m.whoLeft())
	}
}

// placeOne gives nodes to the oldest that fits: a whole job, the minimum of one and what is free beyond, or a pod of an elastic job.
func (m *mix) placeOne() bool {
	var first *mixed
	for _, j := range m.jobs {
		waiting := j.names(false)
		if len(waiting) == 0 || m.free < max(1, j.least-len(j.names(true))) {
			continue
		}
		if first == nil || j.since[waiting[0]] < first.since[first.names(false)[0]] {
			first = j
		}
	}
	if first == nil {
		return false
	}
	n := 1
	if on := len(first.names(true)); on < first.least {
		n = min(m.free, len(first.names(false)))
	}
	for _, name := range first.names(false)[:n] {
		first.on[name] = true
		m.free--
	}
	return true
}

// lose makes an elastic job lose a pod that it does not need, and get another.
func (m *mix) lose(j *mixed) {
	on := j.names(true)
	if len(on) <= j.least {
		return
	}
	name := on[m.rng.Intn(len(on))]
	slot := int(name[strings.Index(name, "-")+1] - '0')
	m.end(j, name)
	m.add(j, slot)
	m.settle()
}

// end ends a pod.
func (m *mix) end(j *mixed, name string) {
	if j.on[name] {
		m.free++
	}
	delete(j.on, name)
	m.remove(name)
	m.settle()
}

// endAll ends a job: the pods that wait first, since they would take the nodes of the others.
func (m *mix) endAll(j *mixed) {
	for _, name := range append(j.names(false), j.names(true)...) {
		m.end(j, name)
	}
}

func (m *mix) step() {
	j := m.jobs[m.rng.Intn(len(m.jobs))]
	switch k := m.rng.Intn(6); {
	case k < 2 && len(m.jobs) < 8:
		size := 1 + m.rng.Intn(2)
		m.arrive(size, size)
	case j.elastic():
		m.lose(j)
	case len(j.names(true)) == j.size && k == 5:
		m.endAll(j)
	}
}

// TestElasticJobsBesideOthers: two elastic jobs lose pods and get others, beside jobs that need all of their pods. None is passed by a
// younger pod, so none starves; surplus holds no room and preempts nothing; no node is idle that the oldest that fits could use.
func TestElasticJobsBesideOthers(t *testing.T) {
	for seed := range seeds.All(t, int64(2)) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			m := &mix{world: newWorld(t, extras{before: evicting("")}, nodes("a", "b", "c", "d", "e", "f")...), free: 6}
			m.rng = rand.New(rand.NewSource(seed))
			m.plugin.args.ReservationAfter.Duration = time.Hour
			m.arrive(3, 1)
			m.arrive(4, 2)
			for range 16 {
				m.step()
			}
			for _, j := range m.jobs[:2] { // each job that waits gets its turn
				m.endAll(j)
			}
			for range m.jobs {
				for _, j := range m.jobs[2:] {
					if len(j.names(true)) == j.size {
						m.endAll(j)
					}
				}
			}
			for _, j := range m.jobs[2:] {
				if len(j.on) > 0 {
					t.Errorf("job %s never ran", j.name)
				}
			}
		})
	}
}
