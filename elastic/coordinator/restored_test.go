package coordinator

import (
	"testing"

	"google.golang.org/grpc/codes"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
)

// TestTheRecordOfABackup: a coordinator with an outdated record continues from the generation that agents report. It does not halt running
// ranks, and replaces no pod without need. It repairs a failure in the next generation, from the newest step.
func TestTheRecordOfABackup(t *testing.T) {
	h, p, a, key := pair(t)
	start(a, 1)
	h.store.mu.Lock()
	backup := h.store.records[key]
	h.store.mu.Unlock()
	// the node of this pod is well again
	backup.PendingReplacements = []elastic.Termination{{Slot: 1, Pod: "a1", Name: "train-1", Cause: "GPUFellOff"}}
	again := func(generation uint64) {
		a[1].fails(0, &coordinatorv1.Exit{Code: 137, Signal: 9})
		for i := range a {
			a[i].await(coordinatorv1.Order_ORDER_HALT, generation)
			a[i].halted(generation)
		}
		if d := start(a, generation+1); d.Run.RestoreStep != generation {
			t.Errorf("generation %d is %v, want step %d", generation+1, d.Run, generation)
		}
		a[0].seals(generation + 1)
		a[1].seals(generation + 1)
	}
	a[0].seals(1)
	a[1].seals(1)
	again(1)
	again(2)
	h.close()
	for i := range a {
		if got := a[i].refused(); got != codes.Unavailable {
			t.Errorf("a coordinator that ends says %v", got)
		}
	}
	h.store.mu.Lock()
	h.store.records[key] = backup
	h.store.mu.Unlock()
	h.serve(leading())
	if err := h.server.SetPendingReplacements(t.Context(), key, nil); err != nil {
		t.Fatal(err)
	}
	for i := range a {
		report := a[i].report
		a[i] = h.dial(h.allow(p[i]))
		a[i].report = report
		a[i].say()
	}
	for i := range a {
		if d := a[i].await(coordinatorv1.Order_ORDER_RUN, 3); d.Run.Number != 3 {
			t.Errorf("slot %d runs generation 3 and is told %v", i, d)
		}
	}
	again(3)
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if r := h.store.records[key]; r.Generation != 4 || len(r.PendingReplacements) > 0 || r.Verdict != nil {
		t.Errorf("recorded is %+v", r)
	}
	if len(h.store.replaced) > 0 {
		t.Errorf("replaced were %+v", h.store.replaced)
	}
}
