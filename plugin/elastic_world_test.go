package plugin

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
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
	name              string
	size, least, unit int
	on                map[string]bool
	since             map[string]int
}

// slotOf is the slot of a pod.
func slotOf(name string) int { return int(name[strings.Index(name, "-")+1] - '0') }

// block returns the pods of a block that exist, those without a node, and whether none is missing.
func (j *mixed) block(b int) (waiting []string, whole bool) {
	n := 0
	for name, on := range j.on {
		if slotOf(name)/j.unit == b {
			if n++; !on {
				waiting = append(waiting, name)
			}
		}
	}
	return waiting, n == j.unit
}

// useful counts the pods of whole blocks that all have nodes.
func (j *mixed) useful() (n int) {
	for b := range j.size / j.unit {
		if waiting, whole := j.block(b); whole && len(waiting) == 0 {
			n += j.unit
		}
	}
	return n
}

// wish is pods that get nodes together, and the youngest of which waits since then; more may get nodes with them.
type wish struct {
	pods  []string
	more  [][]string
	since int
}

// wishes returns what a job waits for: its minimum, with further blocks, or blocks that join.
func (j *mixed) wishes() (all []wish) {
	var blocks []wish
	for b := range j.size / j.unit {
		if waiting, whole := j.block(b); whole && len(waiting) > 0 {
			w := wish{pods: waiting}
			for _, name := range waiting {
				w.since = max(w.since, j.since[name])
			}
			blocks = append(blocks, w)
		}
	}
	lacks := j.least - j.useful()
	if lacks <= 0 || len(blocks)*j.unit < lacks {
		return blocks
	}
	slices.SortStableFunc(blocks, func(a, b wish) int { return cmp.Compare(len(a.pods), len(b.pods)) })
	w := wish{since: j.since[j.names(false)[0]]}
	for i, b := range blocks {
		if i*j.unit < lacks {
			w.pods = append(w.pods, b.pods...)
		} else {
			w.more = append(w.more, b.pods)
		}
	}
	return []wish{w}
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
		asking(elasticPod(p, j.least), v1alpha1.AnnotationGangUnit, fmt.Sprint(j.unit))
	}
	j.on[p.Name], j.since[p.Name] = false, m.made
	m.create(created(p, ago(1000-m.made)))
}

func (m *mix) arrive(size, least, unit int) {
	j := &mixed{name: fmt.Sprint("j", len(m.jobs)), size: size, least: least, unit: unit, on: map[string]bool{}, since: map[string]int{}}
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

// placeOne gives nodes to the oldest that fits: a whole job, the minimum of one and what is free beyond, or a block of an elastic job.
func (m *mix) placeOne() bool {
	var first *mixed
	var of wish
	for _, j := range m.jobs {
		for _, w := range j.wishes() {
			if len(w.pods) <= m.free && (first == nil || w.since < of.since) {
				first, of = j, w
			}
		}
	}
	if first == nil {
		return false
	}
	for _, more := range of.more {
		if len(of.pods)+len(more) > m.free {
			break
		}
		of.pods = append(of.pods, more...)
	}
	for _, name := range of.pods {
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
	if waiting, _ := j.block(slotOf(name) / j.unit); len(waiting) == 0 && j.useful()-j.unit < j.least {
		return
	}
	m.end(j, name)
	m.add(j, slotOf(name))
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
		m.arrive(size, size, 1)
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
			m.arrive(3, 1, 1)
			m.arrive(4, 2, 1+int(seed%2))
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
