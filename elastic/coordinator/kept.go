package coordinator

import (
	"math"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// keptOfNamespace bounds the memory for reports of one namespace: the newest of each pod, and how ranks ended. A tenant with many pods
	// must not fill the memory for other tenants' recoveries. From keptTexts on, reports are stored without texts for users, so that
	// tracebacks of one tenant do not make the coordinator refuse the tenant's own agents.
	keptOfNamespace = 128 << 20
	keptTexts       = 64 << 20
	// keptLooksOfPod is memory for looks that each pod has for itself, whatever others use: 3 KiB for each look at eight ranks, for the
	// newest three and the one that replaces the oldest.
	keptLooksOfPod = 96 << 10
	// keptLooks bounds what looks of all gangs use beyond keptLooksOfPod, and keptLooksOfNamespace what those of one namespace do. Beyond
	// either looks are dropped, so that verdicts lack them.
	keptLooks            = 96 << 20
	keptLooksOfNamespace = 24 << 20
	// reportBytes and rankBytes are the memory of a report and of each rank in it, without texts.
	reportBytes, rankBytes = 1 << 10, 512
)

// keptReports is the memory for reports by namespace; looks is what all looks use beyond keptLooksOfPod.
type keptReports struct {
	mu    sync.Mutex
	of    map[string]kept // guarded by mu
	looks int64           // guarded by mu
}

// grow adds to a namespace's bytes, if the sums stay within most, and those of all looks within keptLooks; a decrease always succeeds.
func (k *keptReports) grow(namespace string, by, most kept) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := kept{k.of[namespace].all + by.all, k.of[namespace].looks + by.looks}
	if by.all > 0 && now.all > most.all || by.looks > 0 && (now.looks > most.looks || k.looks+by.looks > max(keptLooks, most.looks)) {
		return false
	}
	k.looks += by.looks
	switch {
	case now.all <= 0:
		delete(k.of, namespace)
	case k.of == nil:
		k.of = map[string]kept{namespace: now}
	default:
		k.of[namespace] = now
	}
	return true
}

// sizeOf estimates the memory of a stored report.
func sizeOf(r *protocol.Report) int64 {
	n := reportBytes + len(r.Rank)*rankBytes + len(r.Refused) + len(r.Unprotected) + len(r.Address)
	n += sizeOfLooks(r.Looks) + sizeOfTrials(r.Trials)
	for _, note := range r.Notes {
		n += len(note)
	}
	for i := range r.Rank {
		if e := r.Rank[i].Exit; e != nil {
			n += len(e.Traceback)
		}
	}
	return int64(n)
}

// withoutTexts drops texts for users, and looks: a gang whose looks are dropped is judged by none.
func withoutTexts(r *protocol.Report) {
	r.Notes, r.Looks = nil, nil
	for i := range r.Rank {
		if e := r.Rank[i].Exit; e != nil {
			short := *e
			short.Traceback = ""
			r.Rank[i].Exit = &short
		}
	}
}

// keep counts the new report of a slot instead of the previous one, shortened if its namespace stores much, or returns why it cannot be
// stored. The caller holds g.mu.
func (g *gang) keep(slot elastic.Slot, r *protocol.Report) error {
	if g.ctx.Err() != nil {
		return nil
	}
	if !g.state.WantsLooks(r) { // before they are counted
		r.Looks = nil
	}
	most := kept{keptTexts, keptLooksOfNamespace}
	if g.countKept(slot, r, most) {
		return nil
	}
	if r.Looks = nil; g.countKept(slot, r, most) {
		return nil
	}
	withoutTexts(r)
	if g.countKept(slot, r, kept{keptOfNamespace, math.MaxInt64}) {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "rank: reports of namespace %s use %d MiB, the limit of a namespace: run fewer pods there at once, or move jobs to another namespace",
		g.key.Namespace, keptOfNamespace>>20)
}

// recount counts what the core has actually stored for a slot after a report. The caller holds g.mu.
func (g *gang) recount(slot elastic.Slot) {
	if g.ctx.Err() != nil {
		return
	}
	newest, _ := g.state.Held(slot)
	g.countKept(slot, newest, kept{math.MaxInt64, math.MaxInt64})
}

// countKept counts the memory of a slot with a report, if its namespace stays within most. Texts of exits that the report also has share
// its memory, so the larger of both counts.
func (g *gang) countKept(slot elastic.Slot, r *protocol.Report, most kept) bool {
	_, exits := g.state.Held(slot)
	now := kept{all: max(sizeOf(r), exits), looks: int64(sizeOfLooks(r.Looks))}
	for _, looks := range g.state.HeldLooks(slot) {
		n := int64(sizeOfLooks(looks))
		now.all, now.looks = now.all+n, now.looks+n
	}
	now.looks = max(0, now.looks-keptLooksOfPod)
	before := g.kept[slot]
	if !g.server.kept.grow(g.key.Namespace, kept{now.all - before.all, now.looks - before.looks}, most) {
		return false
	}
	g.kept[slot] = now
	return true
}

// forgetKept subtracts the memory of a dropped gang.
func (g *gang) forgetKept() {
	g.mu.Lock()
	defer g.mu.Unlock()
	var sum kept
	for _, n := range g.kept {
		sum.all, sum.looks = sum.all-n.all, sum.looks-n.looks
	}
	clear(g.kept)
	g.server.kept.grow(g.key.Namespace, sum, kept{})
}

// kept is the memory of reports, and what the looks in them use beyond keptLooksOfPod.
type kept struct{ all, looks int64 }

// keptBySlot is the memory of each slot's reports.
type keptBySlot = map[elastic.Slot]kept
