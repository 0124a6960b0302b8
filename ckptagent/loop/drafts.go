//go:build linux

package loop

import (
	"context"
	"sync"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/arena"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
)

// drafts are the rank files that are written while their slots are sealed, before the copy is ordered: at most one for each rank.
type drafts struct {
	store *store.Store

	mu       sync.Mutex
	expected ckptagent.AwaitCopy
	under    map[int]*draft // by local rank
}

// draft is a file of a slot that stays pinned meanwhile.
type draft struct {
	*store.Draft
	cancel context.CancelFunc
	pinned *arena.Pinned
}

// await sets which copies are expected. If none is, drafts that no order has taken are removed.
func (d *drafts) await(e ckptagent.AwaitCopy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expected = e
	for local, one := range d.under {
		if h := one.pinned.Seal; e.Generation != h.Generation || h.Step < e.From {
			delete(d.under, local)
			go one.drop()
		}
	}
}

// begin begins to write a copy that a rank has announced, if it is expected.
func (d *drafts) begin(local int, early *arena.Pinned) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, h := d.expected, early.Seal
	if e.From == 0 || h.Step < e.From || h.Generation != e.Generation || d.under[local] != nil {
		early.Release()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.under[local] = &draft{d.store.Draft(ctx, fileOf(e.BaseRank, local, e.World, h), early.Data()), cancel, early}
}

// take returns the draft of an ordered file, and removes the rank's draft of any other; nil: there is none.
func (d *drafts) take(local int, f format.RankFile) *draft {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.under[local]
	delete(d.under, local)
	if one != nil && !one.Matches(f) {
		go one.drop()
		one = nil
	}
	return one
}

// fileOf describes the file of a local rank's pinned slot.
func fileOf(baseRank, local, world int, h format.Slot) format.RankFile {
	return format.RankFile{
		Rank: uint32(baseRank + local), WorldSize: uint32(world), Step: h.Step, Generation: h.Generation, Branch: h.Branch, Length: h.Length,
		Checksum: h.CRC,
	}
}

// commit completes the file, unless ctx ends before.
func (d *draft) commit(ctx context.Context, f format.RankFile) error {
	defer d.pinned.Release()
	defer d.cancel()
	defer context.AfterFunc(ctx, d.cancel)()
	return d.Commit(f)
}

// drop removes the file, if there is one.
func (d *draft) drop() {
	if d == nil {
		return
	}
	d.cancel()
	d.Drop()
	d.pinned.Release()
}
