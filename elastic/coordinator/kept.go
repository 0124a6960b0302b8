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
	// keptOfNamespace bounds what reports of one namespace keep here in all, the newest of each pod and how ranks ended: a tenant with many
	// pods must not fill the memory that recoveries of others need. From keptTexts on reports are kept without what is for people, so that it
	// is not tracebacks of one tenant that shut his own agents out.
	keptOfNamespace = 128 << 20
	keptTexts       = 64 << 20
	// reportBytes and rankBytes are what a report and each rank in it take, beside their texts.
	reportBytes, rankBytes = 1 << 10, 512
)

// keptReports counts what reports keep, by namespace.
type keptReports struct {
	mu    sync.Mutex
	bytes map[string]int64 // guarded by mu
}

// grow adds to a namespace's bytes, if they stay within most; less is always taken.
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

// sizeOf is about what a report takes while it is kept.
func sizeOf(r *protocol.Report) int64 {
	n := reportBytes + len(r.Rank)*rankBytes + len(r.Refused) + len(r.Unprotected) + len(r.Address)
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

// withoutTexts leaves out what no decision needs.
func withoutTexts(r *protocol.Report) {
	r.Notes = nil
	for i := range r.Rank {
		if e := r.Rank[i].Exit; e != nil {
			short := *e
			short.Traceback = ""
			r.Rank[i].Exit = &short
		}
	}
}

// keep counts the report of a slot in the place of the one before, shortened where its namespace keeps much, or says why it
// cannot be kept. g.mu is held.
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

// recount counts what is truly kept of a slot once a report was taken in, or was not. g.mu is held.
func (g *gang) recount(slot elastic.Slot) {
	if g.ctx.Err() != nil {
		return
	}
	newest, _ := g.state.Held(slot)
	g.countKept(slot, newest, math.MaxInt64)
}

// countKept counts what a slot keeps with a report, if its namespace stays within most. Texts of exits that the report has as
// well are the same in memory, so the larger of both counts.
func (g *gang) countKept(slot elastic.Slot, r *protocol.Report, most int64) bool {
	_, exits := g.state.Held(slot)
	now := max(sizeOf(r), exits)
	if !g.server.kept.grow(g.key.Namespace, now-g.kept[slot], most) {
		return false
	}
	g.kept[slot] = now
	return true
}

// forgetKept counts off what a gang kept that is forgotten.
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

// keptBySlot is what each slot's reports keep.
type keptBySlot = map[elastic.Slot]int64
