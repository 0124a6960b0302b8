package format

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
)

// whole sets the checksum of every record of an arena's pages to match its bytes. Otherwise nothing that a fuzzer writes would be read.
func whole(meta []byte) {
	for _, at := range []int64{
		HeaderOffset,
		ControlOffset,
		ControlOffset + secondRecord,
		ClientOffset,
		ClientOffset + secondRecord,
		SlotHeaderOffset(0),
		SlotHeaderOffset(1),
		SlotHeaderOffset(2),
	} {
		seal(meta[at : at+RecordSize])
	}
}

// FuzzOpen: an arena with any content is refused, or opened as a Book that keeps its invariants in all operations. At most one slot is
// granted, and sealed and announced data lies within its slot. Opening the written arena again gives the same Book.
func FuzzOpen(f *testing.F) {
	for _, arenas := range []map[string][]byte{goldenArenas(Slots), goldenArenas(MinSlots)} {
		for _, mem := range arenas {
			f.Add(mem[:MetaBytes], false, []byte("bBlsdpP"))
			f.Add(mem[:MetaBytes], true, []byte("lshb"))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool, ops []byte) {
		meta := make([]byte, MetaBytes)
		copy(meta, raw)
		if sealed {
			whole(meta)
		}
		b, err := Open(meta)
		if err != nil {
			return
		}
		if b.Header.StateBytes > 1<<50 || b.Control.Grant > 1<<62 || b.Control.Seq > 1<<62 { // values that no real file reaches
			return
		}
		for _, w := range b.Publish() {
			copy(meta[w.Offset:], w.Bytes)
		}
		for i, op := range ops[:min(len(ops), 32)] {
			for _, w := range b.do(op, i, meta) {
				if w.Offset < 0 || w.Offset+int64(len(w.Bytes)) > MetaBytes || len(w.Bytes) != RecordSize {
					t.Fatalf("%q writes %d bytes at %d", op, len(w.Bytes), w.Offset)
				}
				copy(meta[w.Offset:], w.Bytes)
			}
			b.promises(t)
		}
		again, err := Open(meta)
		if err != nil || !slices.Equal(again.Sealed(), b.Sealed()) || again.Control.Generation != b.Control.Generation ||
			again.Control.Slot != b.Control.Slot {
			t.Fatalf("written %+v\nread    %+v, %v", b, again, err)
		}
	})
}

// do carries out one operation on a Book, or writes one record of a client.
func (b *Book) do(op byte, i int, meta []byte) []Write {
	client, _ := DecodeClient(meta[ClientOffset : ClientOffset+PageSize])
	switch op % 7 {
	case 0:
		return b.Begin(b.Control.Generation+int64(op/7), b.Control.Branch, Point{Branch: b.Control.Branch, Step: int64(i)})
	case 1:
		return b.Levels(int64(op), int64(i))
	case 2:
		return b.SetBarrier(int64(op))
	case 3:
		return b.Drop(uint32(i) % b.Header.Slots)
	case 4:
		return b.Abandon(b.Control.Generation+1, Point{Branch: b.Control.Branch, Step: int64(op)})
	case 5: // a client that follows the rules
		client = Client{
			Generation: b.Control.Generation,
			Branch:     b.Control.Branch,
			Slot:       b.Control.Slot,
			Grant:      b.Control.Grant,
			CopyStep:   int64(op) + 1,
			Length:     min(uint64(i)+1, b.Header.StateBytes),
		}
	}
	if c, ok := b.Announced(client); ok {
		return b.Seal(c, uint32(op), int64(i))
	}
	return nil
}

func (b *Book) promises(t *testing.T) {
	t.Helper()
	granted := 0
	for i, s := range b.Slot {
		if s.State == SlotGranted {
			granted++
		}
		if s.State == SlotSealed && s.Length > b.Header.StateBytes {
			t.Fatalf("slot %d holds %d bytes of %d", i, s.Length, b.Header.StateBytes)
		}
	}
	if granted > 1 || b.Control.Slot != NoSlot && (b.Control.Slot >= b.Header.Slots || b.Slot[b.Control.Slot].State != SlotGranted) {
		t.Fatalf("%d slots are granted, control says %d", granted, b.Control.Slot)
	}
	steps := b.Sealed()
	if !slices.IsSorted(steps) {
		t.Fatalf("sealed: %v", steps)
	}
	for _, step := range steps {
		if slot, ok := b.Find(step); !ok || b.Slot[slot].Step != step {
			t.Fatalf("step %d is held and found in slot %d", step, slot)
		}
	}
	c, ok := b.Announced(
		Client{
			Generation: b.Control.Generation,
			Branch:     b.Control.Branch,
			Slot:       b.Control.Slot,
			Grant:      b.Control.Grant,
			CopyStep:   1,
			Length:     b.Header.StateBytes,
		},
	)
	if end := DataOffset(c.Slot, b.Header.StateBytes) + int64(c.Length); ok &&
		(c.Offset != DataOffset(c.Slot, b.Header.StateBytes) || uint64(end) > FileSize(b.Header.StateBytes, b.Header.Slots)) {
		t.Fatalf("announced: %+v", c)
	}
}

// FuzzManifest: a manifest is refused, or its encoding decodes to the same manifest and has a step, a generation and ranks.
func FuzzManifest(f *testing.F) {
	f.Add(Manifest{Step: 5, Generation: 2, Ranks: []ManifestRank{{Length: 1, Checksum: 2}, {}}}.Encode())
	f.Add([]byte(`{"version":1,"step":9223372036854775807,"generation":1,"ranks":[{"length":18446744073709551615,"crc32c":4294967295}]}`))
	f.Add([]byte(`{"version":1,"step":-1,"generation":1,"ranks":[{}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := DecodeManifest(raw)
		if err != nil {
			return
		}
		if m.Step <= 0 || m.Generation <= 0 || len(m.Ranks) == 0 || len(m.Ranks) > len(raw) {
			t.Fatalf("taken: %+v", m)
		}
		again, err := DecodeManifest(m.Encode())
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v comes back as %+v, %v", m, again, err)
		}
	})
}

// FuzzRankFile: the header of a rank file is refused, or its encoding decodes to the same header.
func FuzzRankFile(f *testing.F) {
	f.Add(RankFile{Rank: 1, WorldSize: 2, Step: 3, Generation: 4, Length: 5, Checksum: 6}.Encode()[:rankFileHead], true)
	f.Add(RankFile{Rank: 3, WorldSize: 2, Step: -1, Generation: -1}.Encode()[:rankFileHead], false)
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool) {
		if len(raw) >= rankFileHead && sealed {
			seal(raw[:rankFileHead])
		}
		r, err := DecodeRankFile(raw)
		if err != nil {
			return
		}
		if again, err := DecodeRankFile(r.Encode()); err != nil || again != r {
			t.Fatalf("%+v comes back as %+v, %v", r, again, err)
		}
		if r.Step <= 0 || r.Generation <= 0 || r.Rank >= r.WorldSize {
			t.Fatalf("taken: %+v", r)
		}
	})
}

// FuzzFileName: a file name is unknown, or equals the name for its step and rank.
func FuzzFileName(f *testing.F) {
	for _, name := range []string{RankFileName(7, 3), ManifestName(7), ".step-7.rank-3.x.part", "step-7.rank-3.w.part", "step-07.rank-3", "step-7.rank-03", "step--1.manifest.json", "gen-3", "gen-03", "gen--1", "x.part", "step-9223372036854775808.rank-0"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		switch kind, step := ParseFileName(name); {
		case kind == FileUnknown && step != 0, step < 0:
			t.Fatalf("%q is of kind %d and step %d", name, kind, step)
		case kind == FileManifest && name != ManifestName(step):
			t.Fatalf("%q is taken for a manifest", name)
		case kind == FileRank && !bytes.HasPrefix([]byte(name), []byte(RankFileName(step, 0)[:len(RankFileName(step, 0))-1])):
			t.Fatalf("%q is taken for a rank's file of step %d", name, step)
		}
		if g, ok := ParseGenerationFolder(name); ok && (g < 0 || GenerationFolder(g) != name) {
			t.Fatalf("%q is taken for generation %d", name, g)
		}
	})
}
