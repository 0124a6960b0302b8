//go:build linux

package arena

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestEveryDamagedByteOfAState changes one byte of a sealed state of the Python client, in its head, layout, tree, objects, arrays or gaps.
// The inventory drops that state before any rank restores it. Bytes beyond the length of the state do not count.
func TestEveryDamagedByteOfAState(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "rank-1.arena")
	whole, err := os.ReadFile(filepath.Join("..", "format", "testdata", "python.arena"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := format.DecodeHeader(whole)
	if err != nil {
		t.Fatal(err)
	}
	stock := func(content []byte) []int64 {
		t.Helper()
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s := mustOpenOf(t, dir, h.Slots, h.StateBytes, h.PodUID)
		defer s.Close()
		return protocol.Steps(s.Inventory(0, format.Point{}, now)[1])
	}
	if steps := stock(whole); !slices.Equal(steps, []int64{3}) { // seals it
		t.Fatalf("the arena holds %v", steps)
	}
	if whole, err = os.ReadFile(name); err != nil {
		t.Fatal(err)
	}
	book, err := format.Open(whole[:format.MetaBytes])
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := book.Find(3)
	start, length := int(format.DataOffset(slot, h.StateBytes)), int(book.Slot[slot].Length)
	for _, part := range []int{8, 24, 40} { // layout, tree, objects: each is inside the state
		if end := binary.LittleEndian.Uint64(whole[start+part:]) + binary.LittleEndian.Uint64(whole[start+part+8:]); end > uint64(length) {
			t.Fatalf("a part ends at %d of %d", end, length)
		}
	}
	for at := range int(format.Stride(h.StateBytes)) {
		damaged := slices.Clone(whole)
		damaged[start+at] ^= 1
		steps := stock(damaged)
		if at < length && len(steps) > 0 || at >= length && !slices.Equal(steps, []int64{3}) {
			t.Fatalf("byte %d of %d is changed: the arena holds %v", at, length, steps)
		}
	}
}
