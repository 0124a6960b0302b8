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
	// reportBytes and rankBytes are the memory of a report and of each rank in it, without texts.
	reportBytes, rankBytes = 1 << 10, 512
)

// keptReports is the memory for reports, by namespace.
type keptReports struct {
	mu    sync.Mutex
	bytes map[string]int64 // guarded by mu
}

// grow adds to a namespace's bytes, if the sum stays within most; a decrease always succeeds.
func (k *keptReports) grow(namespace string, by, most int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.bytes[namespace] + by
	if by > 0 && now > most {
		return false
	}
	switch {
	case now <= 0:
		delete(k.bytes, namespace)
	case k.bytes == nil:
		k.bytes = map[string]int64{namespace: now}
	default:
		k.bytes[namespace] = now
	}
	return true
}

// sizeOf estimates the memory of a stored report.
func sizeOf(r *protocol.Report) int64 {
	n := reportBytes + len(r.Rank)*rankBytes + len(r.Refused) + len(r.Unprotected) + len(r.Address) + sizeOfLooks(r.Looks)
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
	if g.countKept(slot, r, keptTexts) {
		return nil
	}
	withoutTexts(r)
	if g.countKept(slot, r, keptOfNamespace) {
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
	g.countKept(slot, newest, math.MaxInt64)
}

// countKept counts the memory of a slot with a report, if its namespace stays within most. Texts of exits that the report also has share
// its memory, so the larger of both counts.
func (g *gang) countKept(slot elastic.Slot, r *protocol.Report, most int64) bool {
	_, exits := g.state.Held(slot)
	now := max(sizeOf(r), exits)
	for _, looks := range g.state.HeldLooks(slot) {
		now += int64(sizeOfLooks(looks))
	}
	if !g.server.kept.grow(g.key.Namespace, now-g.kept[slot], most) {
		return false
	}
	g.kept[slot] = now
	return true
}

// forgetKept subtracts the memory of a dropped gang.
func (g *gang) forgetKept() {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := int64(0)
	for _, n := range g.kept {
		all += n
	}
	clear(g.kept)
	g.server.kept.grow(g.key.Namespace, -all, 0)
}

// keptBySlot is the memory of each slot's reports.
type keptBySlot = map[elastic.Slot]int64
