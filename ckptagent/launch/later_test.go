package launch

import (
	"strings"
	"testing"
)

// TestLater: values that are known only later are neither refused nor counted. Known values beside them are.
func TestLater(t *testing.T) {
	for _, tt := range []struct {
		argv      string
		env       map[string]string
		ranks     int
		from      string
		nodes     int
		refusedAs string
	}{
		{argv: "torchrun --nnodes=2 --node-rank=? --nproc-per-node=4 t.py", ranks: 4, nodes: 2},
		{argv: "torchrun --node-rank ? --nproc-per-node 4 t.py", ranks: 4},
		{argv: "torchrun --nproc-per-node=? --nnodes=2 t.py", from: RanksLater, nodes: 2},
		{argv: "torchrun --nproc-per-node=1? t.py", from: RanksLater},
		{argv: "torchrun --nproc-per-node ? t.py", from: RanksLater},
		{argv: "torchrun --nnodes=? --nproc-per-node=2 t.py", ranks: 2},
		{argv: "torchrun --nnodes=4 --nnodes=? t.py", ranks: 1},
		{argv: "torchrun --max-restarts=? --master-port=? --monitor-interval=? --start-method=? t.py", ranks: 1},
		{argv: "torchrun --event-log-handler=? t.py", ranks: 1},
		{argv: "torchrun t.py", env: map[string]string{"PET_NPROC_PER_NODE": "?", "PET_NNODES": "?", "PET_STANDALONE": "?"}, from: RanksLater},
		{argv: "torchrun --nproc-per-node=2 t.py", env: map[string]string{"PET_NPROC_PER_NODE": "?"}, ranks: 2},
		// The script's own arguments do not count, and a script may have any name.
		{argv: "torchrun t.py --nproc-per-node=?", ranks: 1},
		{argv: "torchrun --nproc-per-node=4 ?", ranks: 4},
		{argv: "torchrun dir-?.py --x", ranks: 1},
		// An unknown argument may be any flag, also the one with the number of ranks.
		{argv: "torchrun ? t.py", from: RanksLater},
		{argv: "torchrun --?=4 t.py", from: RanksLater},
		{argv: "torchrun --nproc-per-node=4 ? t.py", ranks: 4},
		{argv: "torchrun --nnodes=x --node-rank=? t.py", refusedAs: "--nnodes=x"},
		{argv: "torchrun --frobnicate=? t.py", refusedAs: "--frobnicate"},
		{argv: "torchrun --node-rank=?", refusedAs: "training_script"},
	} {
		env := map[string]string{}
		for k, v := range tt.env {
			env[k] = strings.ReplaceAll(v, "?", Later)
		}
		got, err := Parse(strings.Fields(strings.ReplaceAll(tt.argv, "?", Later)), env)
		if tt.refusedAs != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tt.refusedAs+":") {
				t.Errorf("%s: %v", tt.argv, err)
			}
			continue
		}
		if err != nil || got.Ranks != tt.ranks || got.RanksFrom != tt.from || got.Nodes != tt.nodes {
			t.Errorf("%s: %d ranks from %q, %d nodes, %v", tt.argv, got.Ranks, got.RanksFrom, got.Nodes, err)
		}
	}
	if _, err := (Spec{Ranks: RanksAuto, RanksFrom: RanksLater}).Resolve(8, 8); err == nil {
		t.Error("unknown ranks were counted")
	}
}
