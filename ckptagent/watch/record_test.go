//go:build linux

package watch

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
)

func readRecord(t *testing.T, backend, text string, groups []group) []protocol.GroupLook {
	t.Helper()
	r := record{backend: backend, groups: groups, byID: map[int]*tally{}}
	if err := r.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	var out []protocol.GroupLook
	for _, found := range r.tallies() {
		out = append(out, found.look(8))
	}
	return out
}

func show(looks []protocol.GroupLook) string {
	var b strings.Builder
	for _, g := range looks {
		fmt.Fprintf(&b, "%s%v enqueued %d started %d completed %d", g.Name, g.Ranks, g.Enqueued, g.Started, g.Completed)
		if g.Open != nil {
			fmt.Fprintf(&b, " open %+v", *g.Open)
		}
		if g.Last != nil {
			fmt.Fprintf(&b, " last %+v", *g.Last)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestGloo reads what torch 2.15 answered: rank 0 waits in its seventh collective, a barrier; before that it sent something, which gloo
// counts among the operations of the group and does not record.
func TestGloo(t *testing.T) {
	raw, err := os.ReadFile("testdata/gloo-rank0.json")
	if err != nil {
		t.Fatal(err)
	}
	groups := parseGroups([]byte("0\tcpu:gloo,cuda:gloo\t0-3\n1\tcpu:gloo\t0,1\n4\tcpu:gloo\t0,2\n"))
	want := `gloo:0[{0 4 1}] enqueued 7 started 0 completed 6 open {Seq:7 P2P:false Peer:0 Name:barrier Sizes:} last {Seq:7 P2P:false Peer:0 Name:barrier Sizes:}
gloo:1[{0 2 1}] enqueued 3 started 0 completed 3 last {Seq:3 P2P:false Peer:0 Name:broadcast Sizes:10 Float}
gloo:4[{0 2 2}] enqueued 0 started 0 completed 0
`
	if got := show(readRecord(t, "gloo", string(raw), groups)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// Members are unknown without the site hook's file, and groups without an entry where that file has another order.
	for _, text := range []string{"", "1\tgloo\t0,1\n0\tgloo\t0-3\n4\tgloo\t0,2\n"} {
		if got := readRecord(t, "gloo", string(raw), parseGroups([]byte(text))); len(got) != 2 || (got[0].Ranks == nil) != (text == "") {
			t.Errorf("with the groups %q: %s", text, show(got))
		}
	}
}

// op is an entry of a record.
func op(id, group int, seq, p2p, opID int, name, state, more string) string {
	isP2P := strings.Contains(name, "send") || strings.Contains(name, "recv")
	return fmt.Sprintf(`{"record_id":%d,"pg_id":%d,"process_group":["%d","d"],"collective_seq_id":%d,"p2p_seq_id":%d,"op_id":%d,"profiling_name":%q,"state":%q,"is_p2p":%t%s}`,
		id, group, group, seq, p2p, opID, name, state, isP2P, more)
}

func answer(status string, entries ...string) string {
	return `{"comm_lib_version":"2.30","entries":[` + strings.Join(entries, ",") + `],"nccl_comm_state":{"a":{"b":["c"]}},` +
		`"pg_config":{"0":{"desc":"d","name":"0","ranks":"[0, 1, 2, 3]"}},"pg_status":{` + status + `},"version":"2.10"}`
}

func TestRecords(t *testing.T) {
	sizes := `,"input_sizes":[[2,3],[4]],"input_dtypes":["Float","Half"]`
	groups := parseGroups([]byte("0\tcpu:gloo,cuda:nccl\t0-3\n1\tcuda:nccl\t1,3,5,7\n"))
	status := func(id, enqueued, completed int) string {
		return fmt.Sprintf(`"%d":{"last_enqueued_collective":"%d","last_started_collective":"-1","last_completed_collective":"%d"}`, id, enqueued, completed)
	}
	for _, c := range []struct{ name, backend, text, want string }{
		{
			"NCCL's own record: started is not completed, and one that is retired has timed out", "nccl",
			answer(status(0, 3, 1), op(1, 0, 1, 0, 1, "nccl:all_reduce", "completed", sizes+`,"retired":true`),
				op(2, 0, 2, 0, 2, "nccl:all_reduce", "started", sizes+`,"retired":true`), op(3, 0, 3, 0, 3, "nccl:_all_gather_base", "scheduled", "")),
			"nccl:0[{0 4 1}] enqueued 3 started 2 completed 1 open {Seq:2 P2P:false Peer:0 Name:all_reduce Sizes:2x3,4 Float Half} last {Seq:3 P2P:false Peer:0 Name:_all_gather_base Sizes:}\n" +
				"nccl:1[{1 4 2}] enqueued 0 started 0 completed 0\n",
		},
		{
			"send and recv have numbers of their own, and peers in the group's order", "nccl",
			answer("", op(1, 1, 4, 1, 5, "nccl:send 0->2", "completed", ""), op(2, 1, 4, 2, 6, "nccl:recv 0<-3", "scheduled", ""),
				op(3, 1, 5, 2, 7, "nccl:all_reduce", "scheduled", "")),
			"nccl:0[{0 4 1}] enqueued 0 started 0 completed 0\n" +
				"nccl:1[{1 4 2}] enqueued 5 started 0 completed 4 open {Seq:2 P2P:true Peer:7 Name:recv Sizes:} last {Seq:5 P2P:false Peer:0 Name:all_reduce Sizes:}\n",
		},
		{
			"nccl2 has only what is not completed: its numbers are those that its status has", "nccl2",
			answer(status(0, 13, 11)+","+status(1, 9, 9), op(1, 0, 11, 0, 12, "nccl2:all_reduce", "scheduled", ""), op(2, 0, 12, 0, 13, "nccl2:all_reduce", "scheduled", "")),
			"nccl2:0[{0 4 1}] enqueued 13 started 0 completed 11 open {Seq:12 P2P:false Peer:0 Name:all_reduce Sizes:} last {Seq:13 P2P:false Peer:0 Name:all_reduce Sizes:}\n" +
				"nccl2:1[{1 4 2}] enqueued 9 started 0 completed 9\n",
		},
		{
			"a group whose entries were overwritten", "nccl", answer(status(0, 13, 11)),
			"nccl:0[{0 4 1}] enqueued 13 started 0 completed 11 open {Seq:12 P2P:false Peer:0 Name: Sizes:}\nnccl:1[{1 4 2}] enqueued 0 started 0 completed 0\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := show(readRecord(t, c.backend, c.text, groups)); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestAGroupThatWasMadeAgainCountsOnce(t *testing.T) {
	groups := parseGroups([]byte("0\tgloo\t0-3\n0\tgloo\t0-7\n"))
	text := answer("", op(1, 0, 5, 0, 5, "gloo:barrier", "scheduled", ""), strings.Replace(op(2, 1, 1, 0, 1, "gloo:barrier", "scheduled", `,"retired":true`), `["1"`, `["0"`, 1))
	if got, want := show(readRecord(t, "gloo", text, groups)), "gloo:0[{0 8 1}] enqueued 1 started 0 completed 1 last {Seq:1 P2P:false Peer:0 Name:barrier Sizes:}\n"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestMembersOutsideOfTheWorldAreUnknown(t *testing.T) {
	groups := parseGroups([]byte("0\tgloo\t0-8\n"))
	if got := readRecord(t, "gloo", answer(""), groups); got[0].Ranks != nil {
		t.Errorf("of 8 ranks a group has %v", got[0].Ranks)
	}
}

func TestBadRecords(t *testing.T) {
	many := make([]string, 9*protocol.MaxLookGroups)
	for i := range many {
		many[i] = op(i, i, 1, 0, 1, "gloo:barrier", "scheduled", "")
	}
	for name, text := range map[string]string{
		"empty":           "",
		"cut":             answer("", op(1, 0, 1, 0, 1, "gloo:barrier", "scheduled", ""))[:200],
		"no object":       "[1,2]",
		"other entries":   `{"entries":{"a":1}}`,
		"without a group": `{"entries":[{"pg_id":0}]}`,
		"too many groups": answer("", many...),
		"deep":            strings.Repeat("[", 1<<20),
	} {
		r := record{backend: "gloo", byID: map[int]*tally{}}
		if r.read(strings.NewReader(text)) == nil {
			t.Errorf("%s: it was read", name)
		}
	}
}

func TestSizes(t *testing.T) {
	long := entry{Types: []string{"Float"}}
	for range 100 {
		long.Sizes = append(long.Sizes, []int64{1024, 1024})
	}
	other := long
	other.Sizes = append(other.Sizes[:99:99], []int64{1024, 1023})
	if a, b := sizes(&long), sizes(&other); a == b || len(a) != mostSizes || len(b) != mostSizes {
		t.Errorf("%q and %q", a, b)
	}
	for want, e := range map[string]entry{
		"2x3,4 Float Half": {Sizes: [][]int64{{2, 3}, {4}}, Types: []string{"Float", "Half"}},
		"1,1 Float":        {Sizes: [][]int64{{1}, {1}}, Types: []string{"Float", "Float"}},
		"":                 {},
	} {
		if got := sizes(&e); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestGroupFiles(t *testing.T) {
	got := parseGroups([]byte("0\tcpu:gloo,cuda:nccl\t0-3\nbad\n1\tgloo\t3-1\n2\tgloo\t1,x\n3\tmpi\t5,1,0-20/10\n4\tgloo\t0"))
	want := []group{
		{"0", "cpu:gloo,cuda:nccl", []protocol.RankRange{{First: 0, Count: 4, Step: 1}}},
		{"3", "mpi", []protocol.RankRange{{First: 5, Count: 2, Step: -4}, {First: 0, Count: 3, Step: 10}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if b := backendsOf(got); !reflect.DeepEqual(b, []string{"gloo", "nccl", "mpi"}) {
		t.Errorf("backends %v", b)
	}
	if !got[0].uses("nccl2") || got[1].uses("gloo") {
		t.Error("a group uses the backends of its devices, and no other")
	}
}

func TestStacks(t *testing.T) {
	raw := `Stack (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181 in all_reduce
  File "/run/holdfast/python/_holdfast_watch.py", line 50 in init_process_group
  File "train.py", line ??? in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  ...
  File "cut`
	want := []protocol.Frame{
		{Function: "all_reduce", File: "distributed/distributed_c10d.py", Line: 4181},
		{Function: "<module>", File: "train.py"},
		{Function: "_call_with_frames_removed", File: "<frozen importlib._bootstrap>", Line: 241},
	}
	if got := parseStack([]byte(raw)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := parseStack([]byte(strings.Repeat("  File \"/a/b/c.py\", line 1 in f\n", 50))); len(got) != protocol.MaxLookFrames || got[0].File != "b/c.py" {
		t.Errorf("%d frames: %+v", len(got), got)
	}
}

// FuzzRecord: whatever a rank answers, what is reported of it is bounded.
func FuzzRecord(f *testing.F) {
	f.Add(answer("", op(1, 0, 1, 0, 1, "nccl:send 0->1", "scheduled", "")), "0\tnccl\t0-3\n")
	f.Add(`{"entries":[{"pg_id":-1,"process_group":[""],"collective_seq_id":-9223372036854775808}]}`, "0\tgloo\t0-2147483647/2147483647\n")
	f.Fuzz(func(t *testing.T, text, file string) {
		groups := parseGroups([]byte(file))
		r := record{backend: "nccl2", groups: groups, byID: map[int]*tally{}}
		if r.read(strings.NewReader(text)) != nil {
			return
		}
		for _, found := range r.tallies() {
			g := found.look(16)
			if len(g.Name) > protocol.MaxLookText || len(g.Ranks) > protocol.MaxLookRanges {
				t.Fatalf("%+v", g)
			}
			for rank := range g.Members(1 << 30) {
				if rank < 0 || rank >= 16 {
					t.Fatalf("member %d of a world of 16", rank)
				}
			}
		}
	})
}
