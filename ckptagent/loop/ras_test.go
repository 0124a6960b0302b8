//go:build linux

package loop

import (
	"slices"
	"testing"

	"holdfast.dev/holdfast/ckptagent"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/ras"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestOneRankAsksRAS: global rank 0, at the address in its launcher's environment, and no rank of another pod or of one on its
// node's network.
func TestOneRankAsksRAS(t *testing.T) {
	for _, c := range []struct {
		base   int
		host   bool
		env    map[string]string
		ranks  []int
		wanted []string
	}{
		{0, false, nil, []int{0, 1}, []string{ras.DefaultAddress, ""}},
		{0, false, map[string]string{"NCCL_RAS_ADDR": "127.0.0.1:7"}, []int{0, 1}, []string{"127.0.0.1:7", ""}},
		{0, false, nil, []int{1}, []string{""}},
		{2, false, nil, []int{0, 1}, []string{"", ""}},
		{0, true, nil, []int{0, 1}, []string{"", ""}},
	} {
		a := &Agent{c: Config{HostNetwork: c.host}, ranks: map[int]proc.Process{}, launch: &proc.Launch{Env: c.env}}
		a.state.Rank, a.state.Run = make([]ckptagent.Rank, 2), protocol.Run{BaseRank: c.base, MasterPort: 29501}
		for _, local := range c.ranks {
			a.ranks[local] = proc.Process{PID: 7}
		}
		got, _ := a.watched()
		if len(got) != len(c.wanted) {
			t.Fatalf("%+v: %d ranks", c, len(got))
		}
		for i, r := range got {
			if r.RAS != c.wanted[i] || r.Local != c.ranks[i] || !slices.Equal(r.Quiet, []int{29501}) {
				t.Errorf("%+v: %+v", c, r)
			}
		}
	}
}
