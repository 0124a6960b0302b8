package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden arenas again")

const goldenStateBytes = 600

// golden is the content of an arena in testdata. Tests of the Python client read the same files.
type golden struct {
	Header  Header
	Control Control
	Client  *Client
	Slots   []*Slot
	Sealed  []int64
}

// goldenArenas builds every arena from the writes of a Book.
func goldenArenas(slots uint32) map[string][]byte {
	arenas := map[string][]byte{}
	mem := make(memory, FileSize(goldenStateBytes, slots))
	keep := func(name string) { arenas[name] = bytes.Clone(mem) }
	seq := uint64(0)
	var book *Book
	save := func(step int64) {
		data := pattern(0, book.Control.Generation, step, goldenStateBytes-int(step))
		copy(mem[DataOffset(book.Control.Slot, goldenStateBytes):], data)
		seq++
		c := Client{
			Seq: seq, Generation: book.Control.Generation, PID: 4242, Attached: true, Restored: true,
			Step: step, Slot: book.Control.Slot, Grant: book.Control.Grant, CopyStep: step,
			Length: uint64(len(data)), Saves: seq, Skipped: 1, Branch: book.Control.Branch,
			OverlapStep: step + 1, OverlapGrant: seq + 1, Overlapped: seq + 2, Dropped: seq + 3, Blocking: seq + 4, Reason: ReasonClosure,
			Grouped: true, Span: uint32(seq) + 5,
		}
		copy(mem[recordOffset(ClientOffset, seq):], c.Encode())
	}
	sealIt := func() {
		c, _ := DecodeClient(mem[ClientOffset : ClientOffset+PageSize])
		cp, ok := book.Announced(c)
		if !ok {
			panic("golden copy is not announced")
		}
		mem.carry(book.Seal(cp, Checksum(mem[cp.Offset:cp.Offset+int64(cp.Length)]), 1_795_000_000_000_000_000))
	}

	var ws []Write
	book, ws = Create(Header{Slots: slots, LocalRank: 1, StateBytes: goldenStateBytes, CreatedAt: 1_790_000_000_000_000_000,
		PodUID: "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"})
	mem.carry(ws)
	keep("fresh")
	const branch = 3
	mem.carry(book.Begin(7, branch, Point{}))
	keep("granted")
	save(10)
	keep("announced")
	sealIt()
	mem.carry(book.Levels(10, 10))
	save(20)
	sealIt()
	if slots == MinSlots {
		keep("full")
		return arenas
	}
	save(30)
	sealIt()
	keep("full")
	mem[ClientOffset+secondRecord*int64(seq%2)+40] ^= 1                  // newest client record: torn
	mem[SlotHeaderOffset(0)+32] ^= 1                                     // step 10's header: torn
	mem[recordOffset(ControlOffset, book.Control.Seq)+RecordSize-1] ^= 1 // newest control record: torn
	keep("torn")
	mem.carry(book.SetBarrier(31))
	keep("barrier")
	mem.carry(book.SetDurable(Point{Step: 20}))
	keep("durable")
	return arenas
}

func decodeGolden(t *testing.T, mem []byte) golden {
	t.Helper()
	h, err := DecodeHeader(mem)
	if err != nil {
		t.Fatal(err)
	}
	g := golden{Header: h, Slots: make([]*Slot, h.Slots)}
	if g.Control, err = DecodeControl(mem[ControlOffset : ControlOffset+PageSize]); err != nil {
		t.Fatal(err)
	}
	if c, err := DecodeClient(mem[ClientOffset : ClientOffset+PageSize]); err == nil {
		g.Client = &c
	}
	for i := range g.Slots {
		at := SlotHeaderOffset(uint32(i))
		s, err := DecodeSlot(mem[at : at+PageSize])
		if errors.Is(err, ErrTorn) {
			continue
		}
		g.Slots[i] = &s
		if s.State == SlotSealed {
			g.Sealed = append(g.Sealed, s.Step)
		}
	}
	return g
}

func TestGoldenArenas(t *testing.T) {
	compareGolden(t, "testdata", goldenArenas(Slots))
	compareGolden(t, filepath.Join("testdata", "two"), goldenArenas(MinSlots))
}

func compareGolden(t *testing.T, folder string, arenas map[string][]byte) {
	t.Helper()
	for name, mem := range arenas {
		t.Run(filepath.Join(folder, name), func(t *testing.T) {
			file := filepath.Join(folder, name+".arena")
			values, err := json.MarshalIndent(decodeGolden(t, mem), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, '\n')
			if *update {
				write(t, file, mem)
				write(t, filepath.Join(folder, name+".json"), values)
			}
			if !bytes.Equal(read(t, file), mem) {
				t.Errorf("%s: the codec no longer writes these bytes; a change of layout needs a new version (docs/formats/checkpoint.md)", file)
			}
			if want := read(t, filepath.Join(folder, name+".json")); !bytes.Equal(want, values) {
				t.Errorf("%s reads as\n%s\nwant\n%s", file, values, want)
			}
		})
	}
}

// TestPythonArena reads an arena in which the Python client has saved, and the layout of the saved state.
func TestPythonArena(t *testing.T) {
	mem := read(t, filepath.Join("testdata", "python.arena"))
	book, err := Open(mem[:MetaBytes])
	if err != nil {
		t.Fatal(err)
	}
	c, err := DecodeClient(mem[ClientOffset : ClientOffset+PageSize])
	if err != nil {
		t.Fatal(err)
	}
	cp, ok := book.Announced(c)
	if !ok {
		t.Fatalf("client record %+v announces nothing under grant %d", c, book.Control.Grant)
	}
	if cp.Step != 3 || !c.Attached || !c.Restored || c.Saves != 1 {
		t.Fatalf("copy %+v of client %+v", cp, c)
	}
	data := mem[cp.Offset : cp.Offset+int64(cp.Length)]
	if string(data[:8]) != "HFSTATE1" {
		t.Fatalf("state starts with %q", data[:8])
	}
	var layout struct {
		V       int     `json:"v"`
		Tensors [][]any `json:"tensors"`
	}
	at, n := le.Uint64(data[8:]), le.Uint64(data[16:])
	if err := json.Unmarshal(data[at:at+n], &layout); err != nil || layout.V != 1 || len(layout.Tensors) != 2 {
		t.Fatalf("layout %+v: %v", layout, err)
	}
	first := layout.Tensors[0]
	off, length := int(first[3].(float64)), int(first[4].(float64))
	if first[0] != "bytearray" || string(data[off:off+length]) != "hello" {
		t.Fatalf("first tensor %v holds %q", first, data[off:off+length])
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}
