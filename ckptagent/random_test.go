package ckptagent

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// world is a pod around the core: processes, arenas, a launcher, and an agent that may die at any point.
type world struct {
	t        *testing.T
	rnd      *rand.Rand
	state    State
	stored   []byte
	now      time.Time
	procs    map[int]int64 // pid to generation
	nextPID  int
	queue    []Event // answers of adapters, in any order
	promises promises
	newest   int64 // generation of the newest directive
	log      []string
	look     int64 // the newest number that the coordinator wants
	looking  bool  // a look is under way
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) step(e Event) {
	w.now = w.now.Add(time.Millisecond)
	before := w.state.clone()
	s, effects := Step(w.state, e, w.now)
	w.log = append(w.log, fmt.Sprintf("%T%+v -> %s gen %d clean %v %+v", e, e, s.Phase, s.Generation, s.Clean, effects))
	if d, ok := e.(Directed); ok && d.Directive.Generation < before.Generation {
		timely, due := Step(before, Tick{}, w.now) // what the passing of time alone causes
		old, _ := json.Marshal(timely)
		now, _ := json.Marshal(s)
		if string(old) != string(now) || !reflect.DeepEqual(effects, due) {
			w.fail("a directive of generation %d changed a state at %d", d.Directive.Generation, before.Generation)
		}
	}
	switch e.(type) {
	case Looked, Kept:
		w.looking = false
	}
	if s.Kept < before.Kept && s.Incarnation == before.Incarnation || s.Want.Keep > s.Kept && !s.Keeping && !s.Looking.Begun {
		w.fail("files for look %d are wanted, %d answered, after %d", s.Want.Keep, s.Kept, before.Kept)
	}
	if same := s.Incarnation == before.Incarnation; s.Looking.Look < before.Looking.Look && same ||
		s.Want.Look > s.Looking.Look && !s.Looking.Begun && !s.Keeping {
		w.fail("look %d is wanted, %d answered, after %d", s.Want.Look, s.Looking.Look, before.Looking.Look)
	}
	w.state = s
	w.stored, _ = json.Marshal(s.Stored())
	for _, f := range effects {
		if w.rnd.IntN(20) == 0 { // the agent dies before this effect and all later ones
			w.die()
			return
		}
		w.carryOut(f)
	}
	w.promises.state(w.state, len(w.procs))
}

func (w *world) carryOut(f Effect) {
	w.promises.effect(f, len(w.procs))
	switch f := f.(type) {
	case Start:
		for i := range f.Ranks {
			w.nextPID++
			w.procs[w.nextPID] = f.Run.Number
			w.queue = append(w.queue, Started{Generation: f.Run.Number, Local: i, PID: w.nextPID})
		}
	case End:
		for pid, gen := range w.procs {
			delete(w.procs, pid)
			w.queue = append(w.queue, Exited{Generation: gen, Local: w.rnd.IntN(3), Exit: protocol.Exit{Code: 137, Signal: 9, At: w.now}})
		}
		w.queue = append(w.queue, Gone{})
	case Fetch:
		if f.Mark.Step == 0 {
			break
		}
		w.queue = append(w.queue, Fetched{Mark: f.Mark, Failed: w.rnd.IntN(3) == 0, Sealed: [][]protocol.Point{{{Step: 3}}, {{Step: 3}}}})
	case CopyStep:
		for i := range 2 {
			w.queue = append(w.queue, Copied{Local: i, Copy: protocol.Copied{Mark: f.Mark, Length: 1}})
		}
	case WriteManifest:
		w.queue = append(w.queue, ManifestWritten{f.Manifest.Mark})
	case TakeInventory:
		w.queue = append(w.queue, Inventoried{Sealed: [][]protocol.Point{{{Step: 3}}, {{Step: 3}}}})
	case LookAt:
		if w.looking {
			w.fail("look %d begins while another is under way", f.Number)
		}
		w.looking = true
		w.queue = append(w.queue, Looked{Number: f.Number, Generation: f.Generation, Looks: make([]protocol.Look, 1)})
	case KeepEvidence:
		if w.looking {
			w.fail("the taking of evidence for look %d begins while another is under way", f.Number)
		}
		w.looking = true
		w.queue = append(w.queue, Kept{Number: f.Number})
	}
}

// die drops what is not stored, and the answers on their way. Processes go on.
func (w *world) die() {
	w.log = append(w.log, "the agent dies")
	w.queue, w.looking = nil, false
	w.state = State{}
	if err := json.Unmarshal(w.stored, &w.state.Durable); err != nil {
		w.t.Fatal(err)
	}
	w.step(Resumed{SameContainer: true})
	for i, r := range w.state.Rank {
		if _, runs := w.procs[r.PID]; r.Exit == nil && !w.state.Clean && !runs {
			w.queue = append(w.queue, Exited{Generation: w.state.Run.Number, Local: i, Exit: protocol.Exit{Code: 137, Signal: 9, At: w.now}})
		}
	}
	w.queue = append(w.queue, Launched{ID: "a", Ranks: 2})
}

func (w *world) directive() protocol.Directive {
	gen := w.newest
	if w.rnd.IntN(3) == 0 {
		gen = int64(w.rnd.IntN(int(w.newest) + 3))
	}
	w.newest = max(w.newest, gen)
	d := protocol.Directive{Generation: gen, Order: protocol.Order(1 + w.rnd.IntN(3)), CommonStep: 3, ReclaimBelow: 3}
	if w.rnd.IntN(60) == 0 {
		d.Order, d.ExitCode = protocol.OrderExit, 7
	}
	d.Run = protocol.Run{Number: gen, Nodes: 1, RestoreStep: 3, WorldSize: 2}
	mark := func() protocol.Mark {
		return protocol.Mark{Step: int64(w.rnd.IntN(3) + 1), Generation: int64(w.rnd.IntN(int(gen) + 1))}
	}
	switch w.rnd.IntN(6) {
	case 0:
		d.Copy = mark()
	case 1:
		d.Fetch = mark()
	case 2:
		m := mark()
		d.Manifest = protocol.Manifest{Mark: m, Ranks: make([]protocol.ManifestRank, 1)}
	case 3:
		d.BarrierStep = 4
	}
	if w.rnd.IntN(4) == 0 {
		w.look++
	}
	d.Look = w.look
	if w.rnd.IntN(2) == 0 {
		d.Keep = w.look
	}
	return d
}

func (w *world) happen() {
	switch w.rnd.IntN(6) {
	case 0, 1:
		w.step(Directed{w.directive()})
	case 2, 3:
		if len(w.queue) > 0 {
			i := w.rnd.IntN(len(w.queue))
			e := w.queue[i]
			w.queue = slices.Delete(w.queue, i, i+1)
			w.step(e)
		}
	case 4:
		for pid, gen := range w.procs { // a process ends by itself
			delete(w.procs, pid)
			w.queue = append(w.queue, Exited{Generation: gen, Local: w.rnd.IntN(2), Exit: protocol.Exit{Code: w.rnd.IntN(2), At: w.now}})
			break
		}
	case 5:
		switch w.rnd.IntN(40) {
		case 0, 1, 2, 3:
			w.die()
		case 4:
			w.step(Signalled{Signal: 15, Launcher: w.rnd.IntN(2) == 0})
		case 5, 6:
			w.step(Contact{Up: w.rnd.IntN(2) == 0})
		case 7:
			w.now = w.now.Add(time.Duration(w.rnd.IntN(20)) * time.Second)
		default:
			w.step(Tick{})
		}
	}
}

// TestRandomHistories plays random histories with an agent that dies at any point, and checks the promises of the package after each event.
// At the end no more faults occur, and the agent must carry out the last order.
func TestRandomHistories(t *testing.T) {
	for seed := range seeds.All(t, uint64(1500)) {
		w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(0, 0), procs: map[int]int64{}, state: New()}
		w.promises = promises{fail: w.fail, started: map[int64]bool{}}
		w.log = append(w.log, fmt.Sprintf("seed %d", seed))
		w.step(Resumed{})
		w.step(Launched{ID: "a", Ranks: 2})
		for range 80 {
			w.happen()
		}
		w.settle()
	}
}

// settle orders HALT of the newest generation, answers every effect, and expects HALTED.
func (w *world) settle() {
	if w.state.Returned != nil {
		return
	}
	w.step(Contact{Up: true})    // the coordinator is reachable
	w.now = w.now.Add(time.Hour) // longer than any time for which a terminating agent waits
	last := protocol.Directive{Generation: w.newest + 1, Order: protocol.OrderHalt}
	w.newest++
	for range 200 {
		w.step(Directed{last})
		for len(w.queue) > 0 {
			e := w.queue[0]
			w.queue = w.queue[1:]
			w.step(e)
		}
		if r := w.state.Report(); r.State == protocol.StateHalted && r.Generation == last.Generation {
			return
		}
	}
	w.fail("HALT %d was never met: %+v", last.Generation, w.state)
}
