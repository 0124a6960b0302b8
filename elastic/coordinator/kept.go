package coordinator

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// keptOfNamespace bounds what reports of one namespace keep here in all: a tenant with many pods must not fill the memory
	// that recoveries of others need. From keptTexts on reports are kept without what is for people, so that it is not
	// tracebacks of one tenant that shut his own agents out.
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
// cannot be kept. Only the newest of the pod that holds the slot is. g.mu is held.
func (g *gang) keep(st *stream, r *protocol.Report) error {
	if g.current[st.peer.Slot] != st || g.ctx.Err() != nil {
		return nil
	}
	had, all := g.kept[st.peer.Slot], &g.server.kept
	if !all.grow(g.key.Namespace, sizeOf(r)-had, keptTexts) {
		withoutTexts(r)
		if !all.grow(g.key.Namespace, sizeOf(r)-had, keptOfNamespace) {
			return status.Errorf(codes.ResourceExhausted, "rank: reports of namespace %s keep %d MiB, which is all that it may: run fewer pods there at once, or move jobs to another namespace",
				g.key.Namespace, keptOfNamespace>>20)
		}
	}
	g.kept[st.peer.Slot] = sizeOf(r)
	return nil
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

// keptBySlot is what each slot's report keeps.
type keptBySlot = map[elastic.Slot]int64
