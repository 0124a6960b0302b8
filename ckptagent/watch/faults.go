//go:build linux

package watch

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"holdfast.dev/holdfast/ckptagent/ras"
	"holdfast.dev/holdfast/internal/protocol"
)

// askRAS asks NCCL's RAS for the faults of all ranks, in another goroutine, if there is a rank that asks and it uses NCCL. The channel is
// closed after the answer.
func askRAS(ctx context.Context, ranks []Rank, world int) <-chan []protocol.RankFault {
	out := make(chan []protocol.RankFault, 1)
	i := asks(ranks)
	if i < 0 || world < 1 {
		close(out)
		return out
	}
	go func() {
		defer close(out)
		if r := ranks[i]; usesNCCL(parseGroups(readOwned(r.Files+".groups", r.Page.PID))) {
			if faults, err := ras.Ask(ctx, r.RAS, world, ras.Own{PID: r.Page.PID, Addresses: addresses()}); err == nil {
				out <- faults
			}
		}
	}()
	return out
}

// asks returns the index of the rank that asks NCCL's RAS; -1: there is none, or it has joined no process group.
func asks(ranks []Rank) int {
	return slices.IndexFunc(ranks, func(r Rank) bool { return r.RAS != "" && r.Page.PID > 0 })
}

// addresses returns those of this pod.
func addresses() (out []netip.Addr) {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}

func usesNCCL(groups []group) bool {
	return slices.ContainsFunc(backendsOf(groups), func(name string) bool { return name == "nccl" || name == "nccl2" })
}

// addFaults adds the faults to the look at the rank that asked, if they arrive in time.
func addFaults(ctx context.Context, looks []protocol.Look, ranks []Rank, faults <-chan []protocol.RankFault) {
	asked := asks(ranks)
	if asked < 0 {
		return
	}
	i := slices.IndexFunc(looks, func(l protocol.Look) bool { return l.Local == ranks[asked].Local })
	if i < 0 {
		return
	}
	select {
	case looks[i].Faults = <-faults:
	case <-ctx.Done():
	}
}
