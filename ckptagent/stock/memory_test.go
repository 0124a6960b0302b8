package stock

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// stateOfMany is a rank's data with so many tensors: sharded over the ranks, or whole on each.
func stateOfMany(tensors, rank, ranks int, sharded bool) []byte {
	var rows, prefixes, tree []string
	for i := range tensors {
		row := `["torch","float32",[128,2],1024,1024,null]`
		if sharded {
			row = fmt.Sprintf(`["dtensor","float32",[128,2],1024,1024,{"strides":null,"shape":[%d,2],"stride":[2,1],"mesh":[%d],"dims":["dp"],"at":[%d],"placements":[["shard",0]]}]`, 128*ranks, ranks, rank)
		}
		rows, prefixes = append(rows, row), append(prefixes, "300")
		tree = append(tree, fmt.Sprintf(`["layers.%d.attention.projection.weight",{"T":%d}]`, i, i))
	}
	return stateOf(`{"v":1,"tensors":[`+strings.Join(rows, ",")+`],"prefix":[`+strings.Join(prefixes, ",")+`]}`, `{"model":{"d":[`+strings.Join(tree, ",")+`]}}`)
}

// TestMemoryIsBounded: what is kept of large states of many ranks.
func TestMemoryIsBounded(t *testing.T) {
	for _, tt := range []struct {
		tensors, ranks int
		sharded        bool
		most           int64 // MiB
	}{{10_000, 8, false, 6}, {900, 256, true, 16}} {
		x := New()
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		for rank := range tt.ranks {
			state := stateOfMany(tt.tensors, rank, tt.ranks, tt.sharded)
			if err := x.Add(bytes.NewReader(state), int64(len(state))); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		out := counter{}
		if err := x.WriteMetadata(&out, files); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&now)
		kept := int64(now.HeapAlloc) - int64(before.HeapAlloc)
		runtime.KeepAlive(x)
		t.Logf("%d tensors of %d ranks: %d KiB are kept, %s, %d MiB are written", tt.tensors, tt.ranks, kept>>10, time.Since(start).Round(time.Millisecond), out.n>>20)
		if kept>>20 > tt.most {
			t.Errorf("%d tensors of %d ranks: %d MiB, want %d", tt.tensors, tt.ranks, kept>>20, tt.most)
		}
	}
}

type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }
