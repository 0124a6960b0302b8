package waiting

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// call is one operation in a rank's program.
type call struct {
	group string
	peer  int // of a point-to-point operation, else -1
	send  bool
	async bool
}

// world plays ranks that train with data, tensor and pipeline parallelism until none can go on.
type world struct {
	*rand.Rand
	n       int
	members map[string][]int
	program [][]call
	at      []int // the next call of each rank
	stop    map[int]int
	// begun and pairs count a rank's calls: of a group, and to a peer.
	begun map[string][]int
	pairs map[[2]int]int // sends or receives from the first to the second, begun by the first
	pend  []map[string]int
	stuck string // a group whose operation number two does not end
	// crossed: one rank calls two groups in another order than its peers.
	crossed bool
}

func newWorld(seed uint64) *world {
	w := &world{
		Rand:    rand.New(rand.NewPCG(seed, 7)),
		members: map[string][]int{},
		stop:    map[int]int{},
		begun:   map[string][]int{},
		pairs:   map[[2]int]int{},
	}
	size := func() int { return 1 << w.IntN(4) }
	dp, tp, pp := size(), size(), size()
	if w.IntN(40) == 0 {
		dp, tp, pp = 16, 8, 8
	}
	w.n = dp * tp * pp
	async := w.IntN(3) == 0
	w.at, w.pend = make([]int, w.n), make([]map[string]int, w.n)
	for r := range w.n {
		p, d, t := r/(dp*tp), r/tp%dp, r%tp
		name := []string{fmt.Sprintf("tp%d.%d", p, d), fmt.Sprintf("dp%d.%d", p, t), fmt.Sprintf("pp%d.%d", d, t), "world"}
		for _, g := range name {
			w.members[g] = append(w.members[g], r)
		}
		var c []call
		for range 3 {
			for range 2 {
				if p > 0 {
					c = append(c, call{group: name[2], peer: r - dp*tp})
				}
				c = append(c, call{group: name[0], peer: -1})
				if p < pp-1 {
					c = append(c, call{group: name[2], peer: r + dp*tp, send: true})
				}
			}
			c = append(c, call{group: name[1], peer: -1, async: async}, call{group: name[0], peer: -1}, call{group: "world", peer: -1})
		}
		w.program, w.pend[r] = append(w.program, c), map[string]int{}
	}
	for g, m := range w.members {
		w.begun[g] = make([]int, len(m))
	}
	w.fail(async, tp)
	for w.advance() {
	}
	return w
}

// fail decides who stops and where: up to three ranks; or none, and an operation never ends, or a rank calls two groups in another order.
func (w *world) fail(async bool, tp int) {
	culprits := w.IntN(4)
	if async {
		culprits = 1
	}
	for range min(culprits, w.n) {
		r := w.IntN(w.n)
		w.stop[r] = w.IntN(len(w.program[r]) - 1)
	}
	switch {
	case len(w.stop) > 0:
	case tp > 1 && w.IntN(2) == 0:
		c := w.program[w.IntN(w.n)]
		i := len(c)/3 - 1 // the end of the first step
		c[i], c[i-1], w.crossed = c[i-1], c[i], true
	default:
		w.stuck = []string{"world", "tp0.0", "dp0.0"}[w.IntN(3)]
	}
}

func (w *world) count(g string, r int) *int { return &w.begun[g][slices.Index(w.members[g], r)] }

func (w *world) ends(g string, number int) bool {
	return (g != w.stuck || number < 2) && slices.Min(w.begun[g]) >= number
}

func (w *world) advance() (moved bool) {
	for r := range w.n {
		for w.at[r] < len(w.program[r]) {
			c := w.program[r][w.at[r]]
			if stop, stops := w.stop[r]; stops && w.at[r] == stop && w.pend[r]["now"] == 0 {
				break
			}
			if w.pend[r]["now"] == 0 {
				if w.pend[r]["now"], moved = 1, true; c.peer >= 0 {
					w.pairs[[2]int{r, c.peer}]++
				} else {
					*w.count(c.group, r)++
				}
			}
			done := c.async || c.peer >= 0 && w.pairs[[2]int{c.peer, r}] >= w.pairs[[2]int{r, c.peer}] ||
				c.peer < 0 && w.ends(c.group, *w.count(c.group, r))
			if c.group == "world" {
				for _, g := range w.groups(r) { // the step ends here: asynchronous operations must have
					done = done && (w.program[r][w.at[r]].group == g || w.ends(g, *w.count(g, r)))
				}
			}
			if !done {
				break
			}
			w.at[r], w.pend[r]["now"], moved = w.at[r]+1, 0, true
		}
	}
	return moved
}

// groups returns the groups of a rank, in order, without those of pipelines.
func (w *world) groups(r int) (out []string) {
	for _, c := range w.program[r] {
		if c.peer < 0 && !slices.Contains(out, c.group) {
			out = append(out, c.group)
		}
	}
	return out
}

// stopped reports whether a rank has reached the place where it stops.
func (w *world) stopped(r int) bool {
	stop, stops := w.stop[r]
	return stops && w.at[r] == stop && w.pend[r]["now"] == 0
}

// look returns what a rank's agent sees of it.
func (w *world) look(r int) protocol.Look {
	l := protocol.Look{PID: 100 + r, Stack: protocol.StackFresh, State: 'S', Native: "futex_wait_queue"}
	for _, g := range w.groups(r) {
		number := *w.count(g, r)
		k := protocol.GroupLook{Name: g, Ranks: protocol.Ranges(w.members[g]), Enqueued: int64(number), Completed: int64(number)}
		for s := number; s > 0 && !w.ends(g, s); s-- {
			k.Completed = int64(s - 1)
			k.Open = &protocol.Operation{Seq: int64(s), Name: "gloo:all_reduce", Sizes: "[8] Float"}
		}
		if number > 0 {
			k.Last = &protocol.Operation{Seq: int64(number), Name: "gloo:all_reduce", Sizes: "[8] Float"}
		}
		l.Groups = append(l.Groups, k)
	}
	if w.at[r] < len(w.program[r]) && w.pend[r]["now"] == 1 {
		if c := w.program[r][w.at[r]]; c.peer >= 0 {
			name := "gloo:recv"
			if c.send {
				name = "gloo:send"
			}
			open := &protocol.Operation{Seq: int64(w.at[r]), P2P: true, Peer: c.peer, Name: name}
			l.Groups = append(l.Groups, protocol.GroupLook{Name: c.group, Ranks: protocol.Ranges(w.members[c.group]), Open: open})
		}
	}
	l.Frames = []protocol.Frame{{Function: "all_reduce", File: "distributed/distributed_c10d.py", Line: 3000}, {Function: "train", File: "app/train.py", Line: 9}}
	return l
}

// TestWorlds: in gangs that stand still, exactly the ranks that wait for no other rank and do not move are culprits, whatever looks are
// missing. No other rank is ever named, and if one rank moves, or has a phase open, none is.
func TestWorlds(t *testing.T) {
	for seed := range seeds.All(t, uint64(9_100)) {
		w := newWorld(seed)
		ranks, want, busy, lost := w.evidence()
		v := Judge(ranks)
		switch {
		case busy && v.Kind != Busy, !busy && !slices.Equal(v.Culprits, want), busy && len(v.Culprits) > 0:
		case !busy && len(want) == 0 && w.stuck != "" && lost == 0 && v.Kind != FabricHang:
		case !busy && len(want) > 0 && v.Kind != Hang && v.Kind != WaitsOutside:
		case !busy && w.crossed && lost == 0 && v.Kind != Deadlock:
		case !busy && len(want) == 0 && w.stuck == "" && !w.crossed && v.Kind != Unexplained:
		default:
			continue
		}
		t.Fatalf("seed %d: %d ranks, stops %v, %q never ends, %d lost: %s, culprits %v, want %v (busy %t): %s",
			seed, w.n, w.stop, w.stuck, lost, v.Kind, v.Culprits, want, busy, v.Text)
	}
}

// evidence returns three looks at each rank, some of them lost, and what they must show.
func (w *world) evidence() (ranks []Rank, want []int, busy bool, lost int) {
	lossy, start := w.IntN(3) == 0, time.Unix(1_700_000_000, 0)
	async := len(w.stop) == 1 && slices.ContainsFunc(w.program[0], func(c call) bool { return c.async })
	phase := w.phase()
	ranks = make([]Rank, w.n)
	for r := range w.n {
		ranks[r].Slot = r / 8
		stopped := w.stopped(r)
		how, moves, spins := w.IntN(3), stopped && w.IntN(6) == 0, w.IntN(2) == 0
		for i := range 3 {
			l := w.look(r)
			if stopped {
				w.still(&l, how, async)
			}
			if spins && (!stopped || l.Frames != nil && l.Native == "futex_wait_queue") {
				l.CPU, l.MainCPU = time.Duration(i)*5*time.Second, time.Duration(i)*5*time.Second
			}
			if moves {
				l.IO = uint64(i) << 20
			}
			l.Phase = phase(r, i)
			if lossy && w.IntN(20) == 0 {
				lost++
				continue
			}
			ranks[r].Looks = append(ranks[r].Looks, Look{start.Add(time.Duration(i) * 5 * time.Second), &l})
		}
		n := len(ranks[r].Looks)
		switch {
		case n > 0 && ranks[r].Looks[n-1].Phase != nil && ranks[r].Looks[n-1].Phase.Left > 0:
			busy = true
		case !stopped || n < 2:
		case moves:
			busy = true
		default:
			want = append(want, r)
		}
	}
	return ranks, want, busy, lost
}

// phase returns, by rank and look, the phase of a rank: in some worlds one rank has a phase open, which it may close before the last look,
// and one has a phase whose lease has run out.
func (w *world) phase() func(r, look int) *protocol.Phase {
	open, over, closes := w.IntN(4*w.n), w.IntN(4*w.n), w.IntN(3) == 0
	return func(r, look int) *protocol.Phase {
		switch {
		case r == open && (look < 2 || !closes):
			return &protocol.Phase{Name: "evaluation", Left: time.Second, Of: time.Minute}
		case r == over:
			return &protocol.Phase{Name: "evaluation", Of: time.Minute}
		}
		return nil
	}
}

// still makes a look that of a rank that has stopped outside its operations, or inside.
func (w *world) still(l *protocol.Look, how int, outsideOnly bool) {
	script := protocol.Frame{Function: "load_batch", File: "app/train.py", Line: 20}
	switch {
	case how == 0 || outsideOnly:
		l.Frames, l.Native = []protocol.Frame{script}, "hrtimer_nanosleep"
	case how == 1:
		l.Frames = []protocol.Frame{{Function: "synchronize", File: "cuda/__init__.py", Line: 1}, script}
	default:
		l.Stack, l.Frames = protocol.StackWithheld, nil
	}
}
