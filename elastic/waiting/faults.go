package waiting

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"holdfast.dev/holdfast/internal/protocol"
)

// What each fault says, for users.
var faultTexts = map[protocol.Fault]string{
	protocol.FaultSilent: "NCCL does not reach its process",
	protocol.FaultError:  "NCCL reports an error of its process",
	protocol.FaultBehind: "it has launched fewer operations than most",
}

// faults returns, by rank, what NCCL's RAS showed both in the newest look at rank 0 and in the one before, the gravest first. Once is not
// enough: an answer that arrives late is missing in one look.
func (j *judge) faults() map[int]protocol.Fault {
	out := map[int]protocol.Fault{}
	n := len(j.ranks[0].Looks)
	if n < 2 {
		return out
	}
	for _, f := range j.ranks[0].Looks[n-1].Faults {
		if faultTexts[f.Fault] == "" || !slices.Contains(j.ranks[0].Looks[n-2].Faults, f) {
			continue
		}
		out[f.Rank] = min(f.Fault, cmp.Or(out[f.Rank], f.Fault))
	}
	return out
}

// culprits returns, of ranks that are in an operation that does not end, those on which it fails, by the list of the package comment; nil:
// that is not known.
func (j *judge) culprits(together []int) []int {
	j.noted = j.faults()
	few := func(of protocol.Fault) []int {
		has := func(r int) bool { return j.noted[r] == of }
		in, all := filter(slices.Values(together), has), filter(maps.Keys(j.noted), has)
		if 2*len(in) >= len(together) || 2*len(all) >= len(j.ranks) {
			return nil
		}
		return in
	}
	for _, of := range []func() []int{
		func() []int { return few(protocol.FaultSilent) },
		func() []int { return few(protocol.FaultError) },
		func() []int { return j.notStarted(together) },
		func() []int { return few(protocol.FaultBehind) },
	} {
		if out := of(); len(out) > 0 {
			return out
		}
	}
	return nil
}

func filter(ranks iter.Seq[int], has func(int) bool) (out []int) {
	for r := range ranks {
		if has(r) {
			out = append(out, r)
		}
	}
	return out
}
