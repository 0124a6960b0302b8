package waiting

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

// findings are the ranks that wait for nobody, by what the looks show of them.
type findings struct {
	busy, stopped, stored, inside, outside, ended, together []int
	// phases are the ranks whose scripts have a phase open.
	phases []int
	// unknown ranks have too few looks, or no stack and no recorder; unclear ones wait in circles that may be none.
	unknown, unclear, circle []int
}

// settle releases ranks from their operations where ranks wait in a circle, and some of them are known to be elsewhere.
func (j *judge) settle() {
	const rounds = 3
	for range rounds {
		again := false
		for _, set := range j.sinks() {
			if len(set) == 1 {
				continue
			}
			for _, r := range set {
				if f := &j.facts[r]; f.compared && (f.aside() || f.cpu && !f.is.spins()) {
					j.released[r], again = true, true
				}
			}
		}
		if !again {
			return
		}
		j.connect()
	}
}

// find sorts the ranks that wait for nobody.
func (j *judge) find() findings {
	var o findings
	for r := range j.facts {
		if j.phase(r) != nil {
			o.phases = append(o.phases, r)
		}
	}
	awaited := j.awaited()
	for _, set := range j.sinks() {
		if len(set) > 1 {
			j.findCircle(&o, set)
			continue
		}
		r := set[0]
		switch f := &j.facts[r]; {
		case j.ranks[r].Ended:
			if awaited[r] {
				o.ended = append(o.ended, r)
			}
		case !f.compared:
			o.unknown = append(o.unknown, r)
		case f.moves() && (!j.together[r] || f.aside()):
			o.busy = append(o.busy, r)
		case f.is == stopped:
			o.stopped = append(o.stopped, r)
		case j.together[r] && !f.aside():
			o.together = append(o.together, r)
		case f.is == storage:
			o.stored = append(o.stored, r)
		case f.blind():
			o.unknown = append(o.unknown, r)
		case f.is.inside():
			o.inside = append(o.inside, r)
		default:
			o.outside = append(o.outside, r)
		}
	}
	return o
}

// phase returns the phase that a rank's script has open; nil: none.
func (j *judge) phase(r int) *protocol.Phase {
	if l := j.facts[r].last; l != nil && l.Phase != nil && l.Phase.Valid() {
		return l.Phase
	}
	return nil
}

// findCircle sorts ranks that wait for each other.
func (j *judge) findCircle(o *findings, set []int) {
	still := !slices.ContainsFunc(set, func(r int) bool { return !j.facts[r].compared })
	switch {
	case still && j.circle(set):
		o.circle = append(o.circle, set...)
	default:
		o.unclear = append(o.unclear, set...)
	}
}

// awaited reports, by rank, whether another one waits for it.
func (j *judge) awaited() []bool {
	out := make([]bool, len(j.waits))
	for _, edges := range j.waits {
		for _, e := range edges {
			out[e.to] = true
		}
	}
	return out
}

// verdict applies the table of the package comment.
func (j *judge) verdict() Verdict {
	o := j.find()
	v := Verdict{}
	for r := range j.facts {
		switch {
		case j.ranks[r].Ended:
		case !j.facts[r].compared:
			v.Missing++
		default:
			v.Compared++
			if j.facts[r].blind() {
				v.Blind++
			}
		}
	}
	still := slices.Sorted(slices.Values(slices.Concat(o.stored, o.inside, o.outside)))
	desync := j.desync()
	switch {
	case len(o.phases) > 0:
		v.Kind, v.Activity, v.Phase, v.Moves = Busy, j.phaseOf(o.phases), true, len(o.busy) > 0
	case len(o.busy) > 0:
		v.Kind, v.Activity, v.Moves = Busy, j.activity(o.busy), true
	case len(o.stopped) > 0:
		v.Kind, v.Culprits = Stopped, o.stopped
	case j.unexplained(still):
		v.Kind = Unexplained
	case len(o.stored) > 0 && j.nodes(o.stored) > 1:
		v.Kind, v.Culprits = StorageStalls, still
	case len(o.inside) > 0:
		v.Kind, v.Culprits, v.Slow = Hang, still, slices.ContainsFunc(o.inside, j.slow)
	case len(still) > 0:
		v.Kind, v.Culprits = WaitsOutside, still
	case len(o.ended) > 0:
		v.Kind, v.Culprits = EndedEarly, o.ended
	case len(o.unknown)+len(o.unclear) > 0:
		v.Kind = Unexplained
	case len(desync) > 0:
		v.Kind = Desync
	case len(o.circle) > 0:
		v.Kind = Deadlock
	case len(o.together) > 0:
		v.Kind, v.Culprits, v.Slow = FabricHang, j.culprits(o.together), slices.ContainsFunc(o.together, j.slow)
	default:
		v.Kind = Unexplained
	}
	j.describe(&v, o, desync)
	return v
}

// slow reports whether a rank may work where no look shows it.
func (j *judge) slow(r int) bool { return j.facts[r].is.slow() }

// unexplained reports whether most ranks stand still in the script's own code, where no recorder says for whom they wait: then any of them
// may wait for another.
func (j *judge) unexplained(still []int) bool {
	n := 0
	for _, r := range still {
		if j.facts[r].is == elsewhere {
			n++
		}
	}
	return n > 1 && 2*n > len(j.ranks)
}

// nodes returns on how many nodes ranks are.
func (j *judge) nodes(ranks []int) int {
	on := map[string]bool{}
	for _, r := range ranks {
		on[cmp.Or(j.ranks[r].Node, string(rune(j.ranks[r].Slot)))] = true
	}
	return len(on)
}

// activity returns what moving ranks do: what most say.
func (j *judge) activity(busy []int) string {
	return most(busy, "computation", func(r int) string { return j.facts[r].activity })
}

// phaseOf returns the phase that most of the ranks have open.
func (j *judge) phaseOf(ranks []int) string {
	return most(ranks, "", func(r int) string { return j.phase(r).Name })
}

// most returns what most ranks say; otherwise: none says anything.
func most(ranks []int, otherwise string, says func(int) string) string {
	count := map[string]int{}
	for _, r := range ranks {
		if a := says(r); a != "" {
			count[a]++
		}
	}
	best := otherwise
	for _, a := range slices.Sorted(maps.Keys(count)) {
		if count[a] > count[best] {
			best = a
		}
	}
	return best
}

// uniform operations have the same number of elements on all ranks.
var uniform = []string{"all_reduce", "allreduce", "broadcast", "barrier", "_allgather_base", "_all_gather_base", "_reduce_scatter_base"}

// desync returns the ranks of a group that called different operations, or numbers of elements, at one number, by what they called; nil:
// none did.
func (j *judge) desync() map[string][]int {
	for _, g := range j.groups {
		calls := map[int64]map[string][]int{}
		shown := map[string]string{} // operations as the first rank called them, by what must be equal
		stuck := map[int64]bool{}
		for _, s := range g.entries {
			o := open(s.GroupLook)
			note := func(o *protocol.Operation) {
				if o == nil || o.P2P || o.Name == "" {
					return
				}
				if calls[o.Seq] == nil {
					calls[o.Seq] = map[string][]int{}
				}
				what, equal := called(o)
				key := fmt.Sprint(o.Seq, " ", equal)
				what = cmp.Or(shown[key], what)
				shown[key] = what
				calls[o.Seq][what] = append(calls[o.Seq][what], s.rank)
			}
			if note(o); o != nil {
				stuck[o.Seq] = true
			}
			if l := s.Last; l != nil && (o == nil || l.Seq != o.Seq) {
				note(l)
			}
		}
		for _, number := range slices.Sorted(maps.Keys(calls)) {
			if by := calls[number]; stuck[number] && len(by) > 1 {
				return by
			}
		}
	}
	return nil
}

// called returns an operation with its sizes, if their numbers of elements must be equal, and what must be equal.
func called(o *protocol.Operation) (what, equal string) {
	name := short(o.Name)
	if !slices.Contains(uniform, name) || o.Sizes == "" {
		return name, name
	}
	sizes, types, _ := strings.Cut(o.Sizes, " ")
	equal = name
	for tensor := range strings.SplitSeq(sizes, ",") {
		equal += " " + elements(tensor)
	}
	return name + " " + o.Sizes, equal + " " + types
}

// elements returns the number of elements of a tensor whose sizes are as in "2x3"; what is no such text is returned as it is.
func elements(sizes string) string {
	n := 1.0
	if sizes == "" { // a scalar
		return "1"
	}
	for size := range strings.SplitSeq(sizes, "x") {
		k, err := strconv.ParseUint(size, 10, 63)
		if err != nil {
			return sizes
		}
		n *= float64(k)
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}

// notStarted returns the ranks on whose devices an operation has not started that has started on most others; nil: that is not known.
func (j *judge) notStarted(together []int) []int {
	late := map[int]bool{}
	for _, g := range j.groups {
		var not []int
		started := 0
		for _, s := range g.entries {
			switch o := open(s.GroupLook); {
			case o == nil || o.P2P || s.Started == 0 || !slices.Contains(together, s.rank):
			case s.Started < o.Seq:
				not = append(not, s.rank)
			default:
				started++
			}
		}
		if len(not) < started {
			for _, r := range not {
				late[r] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(late))
}
