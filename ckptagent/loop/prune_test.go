//go:build linux

package loop

import (
	"bytes"
	"slices"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestWhatAnOrderRemoves: an order with a line removes unrecorded steps below it. An order without a line removes all steps older than the
// recorded ones.
func TestWhatAnOrderRemoves(t *testing.T) {
	mark := func(step int64) protocol.Mark { return protocol.Mark{Step: step, Generation: 1} }
	for name, c := range map[string]struct {
		below    protocol.Mark
		recorded []protocol.Mark
		want     []protocol.Mark
	}{
		"a line and a pin below it": {mark(4), []protocol.Mark{mark(5), mark(4), mark(2)}, []protocol.Mark{mark(2), mark(4), mark(5)}},
		"no line":                   {protocol.Mark{}, []protocol.Mark{mark(5), mark(3)}, []protocol.Mark{mark(3), mark(4), mark(5)}},
		"nothing named":             {protocol.Mark{}, nil, []protocol.Mark{mark(1), mark(2), mark(3), mark(4), mark(5)}},
	} {
		k := &uploader{store: store.New(store.OS{}, t.TempDir(), "w")}
		data := []byte("state")
		for step := int64(1); step <= 5; step++ {
			f := format.RankFile{WorldSize: 1, Step: step, Generation: 1, Length: uint64(len(data)), Checksum: format.Checksum(data)}
			if err := k.store.Put(t.Context(), f, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			if err := k.store.PutManifest(format.Manifest{
				Step:       step,
				Generation: 1,
				Ranks:      []format.ManifestRank{{Length: f.Length, Checksum: f.Checksum}},
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.prune(c.below, c.recorded); err != nil {
			t.Fatal(err)
		}
		if complete, err := k.store.Complete(); err != nil || !slices.Equal(complete, c.want) {
			t.Errorf("%s: left are %v, %v, want %v", name, complete, err, c.want)
		}
	}
}
