package ckptagent

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/seeds"
)

// container is a container without a launcher, with the agent's core. It has the process that init started, the processes that the agent
// started later, and an agent that may die at any point.
type container struct {
	t        *testing.T
	rnd      *rand.Rand
	state    State
	stored   []byte
	now      time.Time
	procs    map[int]bool // running processes; 1 is the one that init started
	nextPID  int
	command  Command
	queue    []Event
	started  map[int64]bool
	newest   int64
	returned []int
	gone     bool // the agent has ended all processes
	log      []string
}

func (w *container) step(e Event) {
	w.now = w.now.Add(time.Millisecond)
	if _, ok := e.(Gone); ok && w.state.Ending {
		w.gone = true
	}
	s, effects := Step(w.state, e, w.now)
	w.log = append(w.log, fmt.Sprintf("%T%+v -> %s gen %d clean %v whole %v original %v %+v", e, e, s.Phase, s.Generation, s.Clean, s.Whole, s.FirstRun, effects))
	w.state = s
	w.stored, _ = json.Marshal(s.Stored())
	for _, f := range effects {
		if w.rnd.IntN(20) == 0 {
			w.die()
			return
		}
		w.carryOut(f)
	}
	if s.Phase == protocol.StateHalted && !s.Ending && s.Whole && s.Run.Number == s.Generation && len(w.procs) > 0 {
		w.fail("halted while %v run", w.procs)
	}
}

func (w *container) fail(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

func (w *container) carryOut(f Effect) {
	switch f := f.(type) {
	case Start:
		if w.started[f.Run.Number] {
			w.fail("generation %d started twice", f.Run.Number)
		}
		w.started[f.Run.Number] = true
		pid := 1
		if !f.FirstRun {
			if len(w.procs) > 0 {
				w.fail("generation %d started while %v run", f.Run.Number, w.procs)
			}
			w.nextPID++
			pid = w.nextPID
			w.procs[pid] = true
		} else if w.nextPID > 1 || w.gone {
			w.fail("the run that init began is taken for generation %d after another one", f.Run.Number)
		}
		w.queue = append(w.queue, Started{Generation: f.Run.Number, PID: pid})
		if !w.procs[pid] {
			w.queue = append(w.queue, Exited{Generation: f.Run.Number, Exit: protocol.Exit{Code: w.command.Exit.Code, At: w.now}})
		}
	case End:
		for pid := range w.procs {
			w.end(pid, 137, 9)
		}
		w.queue = append(w.queue, Gone{})
	case TakeInventory:
		w.queue = append(w.queue, Inventoried{})
	case InspectCommand:
		w.queue = append(w.queue, CommandSeen{Command: "x"})
	case Return:
		if len(w.procs) > 0 {
			w.fail("the container ends while %v run", w.procs)
		}
		w.returned = append(w.returned, f.Returned.Code)
	}
}

// end ends a process. The watcher of the process reports its end.
func (w *container) end(pid, code, signal int) {
	delete(w.procs, pid)
	if pid == 1 {
		w.command.Exit = &protocol.Exit{Code: code, Signal: signal, At: w.now}
		w.queue = append(w.queue, CommandEnded{*w.command.Exit})
	}
	if w.state.Run.Number > 0 && !w.state.Clean {
		w.queue = append(w.queue, Exited{Generation: w.state.Run.Number, Exit: protocol.Exit{Code: code, Signal: signal, At: w.now}})
	}
}

func (w *container) die() {
	w.log = append(w.log, "the agent dies")
	w.queue = nil
	w.state = State{}
	if err := json.Unmarshal(w.stored, &w.state.Durable); err != nil {
		w.t.Fatal(err)
	}
	w.step(Resumed{SameContainer: true})
	begun := w.command
	begun.Exit = nil
	w.step(CommandBegan{begun})
	if w.command.Exit != nil {
		w.queue = append(w.queue, CommandEnded{*w.command.Exit})
	}
	if s := w.state; s.Whole && s.Run.Number > 0 && !s.Clean && s.Rank[0].Exit == nil {
		if pid := s.Rank[0].PID; s.FirstRun && !w.procs[1] {
			w.queue = append(w.queue, Exited{Generation: s.Run.Number, Exit: protocol.Exit{Code: w.command.Exit.Code, At: w.now}})
		} else if !s.FirstRun && !w.procs[pid] {
			w.queue = append(w.queue, Exited{Generation: s.Run.Number, Exit: protocol.Exit{Code: 137, Signal: 9, At: w.now}})
		}
	}
}

func (w *container) happen() {
	switch w.rnd.IntN(6) {
	case 0, 1:
		if w.rnd.IntN(3) == 0 {
			w.newest++
		}
		d := protocol.Directive{Generation: w.newest, Order: protocol.Order(1 + w.rnd.IntN(3))}
		d.Run = protocol.Run{Number: w.newest, Nodes: 2, WorldSize: 2, RestartCount: w.rnd.IntN(2)}
		d.Launched = d.Order == protocol.OrderHalt && w.rnd.IntN(20) == 0
		switch w.rnd.IntN(60) {
		case 0:
			d.Order, d.ExitCode = protocol.OrderExit, 7
		case 1:
			d.Run.WorldSize = 3
		}
		if d.Run.Number > 0 {
			w.step(Directed{d})
		}
	case 2, 3:
		if len(w.queue) > 0 {
			i := w.rnd.IntN(len(w.queue))
			e := w.queue[i]
			w.queue = slices.Delete(w.queue, i, i+1)
			w.step(e)
		}
	case 4:
		for pid := range w.procs {
			w.end(pid, w.rnd.IntN(3), 0)
			break
		}
	case 5:
		switch w.rnd.IntN(30) {
		case 0, 1, 2:
			w.die()
		case 3:
			w.step(Signalled{Signal: 15})
		case 4, 5:
			w.now = w.now.Add(time.Duration(w.rnd.IntN(100)) * time.Second)
		default:
			w.step(Tick{})
		}
	}
}

// TestRandomHistoriesOfACommand: no process is started twice or while another one runs. The agent reports HALTED, and the container ends,
// only after all processes have ended. At last the container ends with the ordered exit code or with its command's own.
func TestRandomHistoriesOfACommand(t *testing.T) {
	for seed := range seeds.All(t, uint64(1000)) {
		w := &container{
			t:       t,
			rnd:     rand.New(rand.NewPCG(seed, 2)),
			now:     time.Unix(0, 0),
			procs:   map[int]bool{1: true},
			nextPID: 1,
			started: map[int64]bool{},
			state:   New(),
		}
		w.log = append(w.log, fmt.Sprintf("seed %d", seed))
		w.command = Command{PID: 1, BeganAt: w.now, Timeout: time.Duration(w.rnd.IntN(2)) * time.Minute}
		w.stored, _ = json.Marshal(w.state)
		w.step(Resumed{})
		w.step(CommandBegan{w.command})
		for range 60 {
			w.happen()
		}
		w.settle()
	}
}

// settle ends with code 0 the commands that the agent never adopted, and orders the exit of all others.
func (w *container) settle() {
	w.now = w.now.Add(time.Hour)
	last := protocol.Directive{Generation: w.newest + 1, Order: protocol.OrderExit, ExitCode: 5}
	for range 100 {
		w.step(Tick{})
		w.step(Directed{last})
		for len(w.queue) > 0 {
			e := w.queue[0]
			w.queue = w.queue[1:]
			w.step(e)
		}
		if !w.state.Whole && w.procs[1] {
			w.end(1, 0, 0)
		}
		if w.state.Whole && w.state.Returned != nil || !w.state.Whole && w.state.Clean && w.state.Command.Exit != nil {
			return
		}
	}
	w.fail("the container never ends: %+v", w.state)
}
