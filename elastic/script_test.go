package elastic

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestScripts plays testdata/*.txt; the commands are
//
//	gang N [SECONDS]             a gang of N pods with an empty record, copied to storage so often
//	reports SLOTS KEY=VALUE ...  report, for several slots: "0,1"
//	report SLOT KEY=VALUE ...    the agent changes its report so and sends it; again without keys
//	                             pod inc seq containers ranks port gen state bytes refused leaving notes unprotected whole shrinks span grouped standbys launch returned restarts left proto format storage grace;
//	                             copied, manifested and fetchfailed as POINT@GENERATION; step and sealed
//	                             per local rank, "3|4" and "1,3|3,4"; optimizer and resumed, "-": not known, as step; exit=LOCAL:CODE:SIGNAL:TEXT;
//	                             t=detected:MS,halt:MS,stopped:MS,started:MS,restored:MS,first:MS
//	pending POD@SLOT:CAUSE[:dead] ...   the level; without pods: nobody is to be replaced
//	holder SLOT POD [waits]      the API server has that pod in the slot, and it runs; "none": it has no pod
//	unheard SLOTS MS             until then the API server says again and again that the pods of these slots run
//	ticks MS                     until then a tick comes every second
//	released POD | over | tick
//	supervise off|report|act [SECONDS]   with hang-timeout SECONDS
//	looks MS WHAT/WHAT ...       until then, or until the generation is ended, each pod reports every second; it answers looks as WHAT says of each local rank (lookAt);
//	                             silent: it does not report
//	looks MS WHAT/WHAT unkept    so, but agents do not answer Directive.Keep
//	nodecheck off|suspects|auto|always [WISH [now]]
//	trials MS WHAT/WHAT ...      until then, or until none is wanted any more, each pod reports every second and answers its trials with
//	                             passed, failed, wrong or lost; a pair passes if both do; -: it does not report. No node has passed before.
//	goback POINT                 people want that: a POINT is a step of the first branch, or BRANCH/STEP, as in sealed and copied
//	min N [SECONDS [GROW [RETRY [UNIT]]]]   at least N pods can train, in blocks of UNIT; shrink-after SECONDS
//	placed POD@SLOT:NODE|-[:REFUSAL] ...   the level; pods of other slots do not exist
//	detach SLOT | stored | ended | at MS | restart | record
//	written                      what people see is in the store as it is now
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		s := &stage{t: t, now: time.Unix(1_700_000_000, 0).UTC(), out: out}
		return func(line string) {
			s.promises.fail = func(property, format string, args ...any) {
				t.Helper()
				t.Errorf("%s: %s: "+format, append([]any{line, property}, args...)...)
			}
			s.command(strings.Fields(line))
		}
	})
}

type stage struct {
	t        *testing.T
	now      time.Time
	state    *State
	reports  []protocol.Report
	pods     []Pod
	pending  []Persist
	interval time.Duration
	stored   Record
	last     []string // the directive of each slot, as last printed
	promises promises
	out      *strings.Builder
	limits   quorum.Limits
	looking  bool // answers looks: directives that differ only in their look are not printed
	unkept   bool // agents keep no files
}

func (s *stage) command(f []string) {
	switch f[0] {
	case "gang":
		s.interval = 0
		if len(f) > 2 {
			s.interval = time.Duration(s.number(f[2])) * time.Second
		}
		s.open(s.number(f[1]))
	case "reports":
		for _, slot := range strings.Split(f[1], ",") {
			s.command(append([]string{"report", slot}, f[2:]...))
		}
	case "report":
		slot := s.number(f[1])
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			s.change(slot, k, strings.ReplaceAll(v, "_", " "))
		}
		s.reports[slot].Sequence++
		r := s.reports[slot]
		r.Rank = slices.Clone(r.Rank)
		s.step(Reported{Slot: Slot(slot), Pod: s.pods[slot], Report: r})
	case "detach":
		s.step(Detached{Slot: Slot(s.number(f[1])), Pod: s.pods[s.number(f[1])].UID})
	case "stored":
		if len(s.pending) == 0 {
			s.sayf("nothing to store")
			return
		}
		p := s.pending[len(s.pending)-1]
		s.pending, s.stored = nil, p.Record
		s.step(Stored{Revision: p.Revision, Generation: p.Record.Generation})
	case "written":
		s.stored = s.state.Snapshot()
	case "ended":
		s.step(Ended{})
	case "pending":
		s.step(level(s.terminations(f[1:])))
	case "supervise":
		job := Supervision{Hang: map[string]HangMode{"off": HangOff, "report": HangReport, "act": HangAct}[f[1]]}
		if len(f) > 2 {
			job.Timeout = time.Duration(s.number(f[2])) * time.Second
		}
		s.step(Supervise{job})
	case "min":
		s.limits = quorum.Limits{Min: s.number(f[1])}
		if len(f) > 2 {
			s.limits.ShrinkAfter = time.Duration(s.number(f[2])) * time.Second
		}
		if len(f) > 3 {
			s.limits.Grow = map[string]quorum.Grow{"with-restart": quorum.GrowWithRestart, "off": quorum.GrowOff}[f[3]]
		}
		if len(f) > 4 {
			s.limits.Retry = int64(s.number(f[4]))
		}
		if len(f) > 5 {
			s.limits.Unit = s.number(f[5])
		}
		s.step(Limit{s.limits})
	case "placed":
		s.step(Placed{s.placements(f[1:])})
	case "looks":
		s.looking, s.unkept = true, len(f) > 3 && f[3] == "unkept"
		for end := s.at(f[1]); s.now.Before(end) && s.state.Record.Phase == Running; {
			s.now = s.now.Add(min(time.Second, end.Sub(s.now)))
			for slot, what := range strings.Split(f[2], "/") {
				if what == "silent" {
					continue
				}
				s.answer(slot, what)
			}
		}
		s.looking = false
	case "nodecheck":
		modes := map[string]NodeCheck{"off": CheckNever, "suspects": CheckSuspects, "auto": CheckUnlessPassed, "always": CheckFirst}
		job := Supervision{NodeCheck: modes[f[1]], CheckNow: len(f) > 3}
		if len(f) > 2 {
			job.CheckWish = int64(s.number(f[2]))
		}
		s.step(Supervise{job})
	case "trials":
		s.trials(s.at(f[1]), strings.Split(f[2], "/"))
	case "over":
		s.step(Over{})
	case "goback":
		s.step(GoBack{s.point(f[1])})
	case "released":
		s.step(Released{Pod: f[1], At: s.now})
	case "holder":
		pod := Pod{UID: f[2], Name: f[2], Created: s.now}
		if old := s.pods[s.number(f[1])]; old.UID == f[2] {
			pod = old
		} else if f[2] == "none" || f[2] == "succeeded" {
			pod = Pod{}
		}
		s.step(SlotHolder{Slot: Slot(s.number(f[1])), Pod: pod, Runs: len(f) == 3 && pod.UID != "", Succeeded: f[2] == "succeeded"})
	case "unheard":
		for end := s.at(f[2]); s.now.Before(end); {
			s.now = s.now.Add(min(replacements.LookupEvery, end.Sub(s.now)))
			s.quietly(Tick{})
			for _, slot := range strings.Split(f[1], ",") {
				s.step(SlotHolder{Slot: Slot(s.number(slot)), Pod: s.pods[s.number(slot)], Runs: true})
			}
		}
	case "ticks":
		for end := s.at(f[1]); s.now.Before(end); {
			s.now = s.now.Add(min(replacements.StuckEvery, end.Sub(s.now)))
			s.quietly(Tick{})
		}
	case "tick":
		s.step(Tick{})
	case "at":
		s.now = s.at(f[1])
	case "restart":
		s.pending = nil
		s.state = New(len(s.pods), s.interval, s.stored)
		s.promises.successor()
		if s.limits.Min > 0 {
			Step(s.state, Limit{s.limits}, s.now)
		}
		s.directives(func(string) bool { return true })
	case "record":
		r := s.state.Snapshot()
		if l := r.Launch; l.Number > 1 || len(l.Kept) > 0 {
			s.sayf("launcher %d, after generation %d and %d restarts, kept %v", l.Number, l.After, l.Restarts, l.Kept)
		}
		s.sayf("generation %d from %d, %s, restarts %d, replacements %d, without progress %d, best %d", r.Generation, r.RestoreStep, r.Phase, r.Restarts, r.Replacements, r.WithoutProgress, r.BestStep)
		if r.Unproven > 0 {
			s.sayf("unproven %d", r.Unproven)
		}
		if len(r.Moved) > 0 {
			s.sayf("moved for %v", r.Moved)
		}
		if len(r.Out) > 0 {
			s.sayf("without slots %v: %s", r.Out, r.Progress.Fewer)
		}
		for _, k := range r.Sizes.Struck {
			s.sayf("struck: %d pods, in generation %d: %s", k.Pods, k.Generation, k.Text)
		}
		if z := r.Sizes; z.Absent > 0 {
			s.sayf("slots were absent for %v", z.Absent)
		}
		s.sayf("step %d, saved %d, lost %s%s", r.Progress.Step, r.Progress.SavedStep, r.Progress.Lost, optimizer(&r.Progress))
		for _, rec := range r.Recoveries {
			if rec.Detect >= 0 {
				s.sayf("  detected after %v", rec.Detect)
			}
			if len(rec.Replaced) > 0 {
				s.sayf("  drain %v, replace %v, fetch %v", rec.Drain, rec.Replace, rec.Fetch)
			}
			for _, p := range rec.Replaced {
				s.sayf("  %s by %s, %s: %s, released %v, attached %v", p.Name, p.By, p.NewNode, p.Why(), s.since(p.ReleasedAt), s.since(p.AttachedAt))
			}
			s.sayf(
				"recovery %d: %s rank %d; %v %v %v %v %v; %s, %d/%d standbys",
				rec.Generation,
				rec.Cause.Code,
				rec.Cause.Rank,
				rec.Decide,
				rec.Stop,
				rec.Start,
				rec.Restore,
				rec.FirstStep,
				from(&rec),
				rec.Standbys,
				rec.Ranks,
			)
		}
	default:
		s.t.Fatalf("unknown command %q", f[0])
	}
}

// from returns as text where a recovery resumed.
func from(rec *Recovery) string {
	if !rec.CostKnown() {
		return fmt.Sprintf("restored %d, resumed at an unknown step", rec.RestoreStep)
	}
	return fmt.Sprintf("from %d, %d again", rec.ResumedAt, rec.StepsRecomputed)
}

// optimizer returns the optimizer steps as text.
func optimizer(p *Progress) string {
	out := ""
	if p.OptimizerSteps > 0 {
		out = fmt.Sprintf("; %d optimizer steps", p.OptimizerSteps)
	}
	if p.ResumeKnown {
		out += fmt.Sprintf(" after %d", p.ResumedAt)
	}
	if p.WholeCommand {
		out += "; whole commands"
	}
	if p.UnprotectedPods > 0 {
		out += fmt.Sprintf("; unprotected %d: %v", p.UnprotectedPods, p.Unprotected)
	}
	if p.ResumeUnknown > 0 {
		out += fmt.Sprintf("; of %d recoveries it is not known what they did again", p.ResumeUnknown)
	}
	return out
}

func (s *stage) terminations(pods []string) []Termination {
	out := []Termination{}
	for _, p := range pods {
		f := strings.Split(p, ":")
		name, slot, _ := strings.Cut(f[0], "@")
		out = append(out, Termination{Slot: Slot(s.number(slot)), Pod: name, Name: name, Node: "node-of-" + name, Cause: f[1], Dead: len(f) > 2})
	}
	return out
}

// placements reads where pods are.
func (s *stage) placements(pods []string) (out []Placement) {
	for _, p := range pods {
		f := strings.SplitN(p, ":", 3)
		name, slot, _ := strings.Cut(f[0], "@")
		at := Placement{Slot: Slot(s.number(slot)), Pod: name}
		if f[1] != "-" {
			at.Node = f[1]
		}
		if len(f) > 2 {
			at.Refusal = strings.ReplaceAll(f[2], "_", " ")
		}
		out = append(out, at)
	}
	return out
}

func (s *stage) open(members int) {
	s.limits = quorum.Limits{}
	s.state, s.stored, s.pending = New(members, s.interval, Record{}), Record{}, nil
	s.promises = newPromises(s.promises.fail)
	s.reports, s.pods, s.last = nil, nil, make([]string, members)
	for i := range members {
		s.reports = append(s.reports, protocol.Report{Incarnation: 1, Address: fmt.Sprintf("10.0.0.%d", i), State: protocol.StateIdle, StateBytes: 1})
		s.pods = append(s.pods, Pod{UID: fmt.Sprintf("pod%d", i), Name: fmt.Sprintf("pod%d", i), Created: s.now})
	}
}

func (s *stage) number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatalf("%q is no number", v)
	}
	return n
}

var agentStates = map[string]protocol.AgentState{
	"idle":     protocol.StateIdle,
	"running":  protocol.StateRunning,
	"failed":   protocol.StateFailed,
	"halted":   protocol.StateHalted,
	"finished": protocol.StateFinished,
}

func (s *stage) change(slot int, key, value string) {
	r := &s.reports[slot]
	switch key {
	case "pod":
		s.pods[slot] = Pod{UID: value, Name: value, Created: s.now}
		*r = protocol.Report{Incarnation: 1, Address: r.Address, State: protocol.StateIdle, StateBytes: r.StateBytes, Shrinks: r.Shrinks}
	case "standbys":
		r.ModulesKnown = 1
		for i := range r.Rank {
			r.Rank[i].StandbyReady = i < s.number(value)
		}
	case "inc":
		r.Incarnation = uint64(s.number(value))
	case "seq":
		r.Sequence = uint64(s.number(value)) - 1 // sending it counts
	case "containers":
		r.Containers = uint64(s.number(value))
	case "ranks":
		r.Ranks = s.number(value)
		r.Rank = nil
		for i := range r.Ranks {
			r.Rank = append(r.Rank, protocol.Rank{Local: i})
		}
	case "port":
		r.Port = s.number(value)
	case "gen":
		r.Generation = int64(s.number(value))
	case "state":
		r.State = agentStates[value]
		if r.State == protocol.StateRunning {
			r.Timeline = protocol.Timeline{}
			for i := range r.Rank {
				r.Rank[i].Exit, r.Rank[i].OptimizerSteps, r.Rank[i].ResumeKnown = nil, 0, false
			}
		}
	case "bytes":
		r.StateBytes = uint64(s.number(value))
	case "refused":
		r.Refused = value
	case "waited":
		r.Waited, r.WaitedFor = 1, time.Duration(s.number(value))*time.Second
	case "terminating":
		r.Terminating = true
	case "unprotected":
		r.Unprotected = value
	case "shrinks":
		r.Shrinks = value == "yes"
	case "span":
		for i := range r.Rank {
			r.Rank[i].Span = s.number(value)
		}
	case "grouped":
		for i := range r.Rank {
			r.Rank[i].Grouped = value == "yes"
		}
	case "whole":
		r.WholeCommand = value == "yes"
	case "launch":
		r.Launch = s.number(value)
	case "restarts":
		n := s.number(value)
		r.MaxRestarts = &n
	case "returned":
		r.Returned = s.number(value)
	case "left":
		r.LeftForLauncher = int64(s.number(value))
	case "storage":
		r.Storage = value == "yes"
	case "grace":
		r.Grace = time.Duration(s.number(value)) * time.Second
	case "look":
		s.look(slot, r, value)
	case "barrier":
		r.BarrierStep = int64(s.number(value))
	case "copied":
		m := s.mark(value)
		for i := range r.Rank {
			r.Rank[i].Copied = protocol.Copied{Mark: m, Length: 100 + uint64(i), Checksum: uint32(m.Step)}
		}
	case "manifested":
		r.Manifested = s.mark(value)
	case "fetchfailed":
		r.FetchFailed = s.mark(value)
	case "notes":
		r.Notes = strings.Split(value, ",")
	case "step":
		for i, v := range strings.Split(value, "|") {
			r.Rank[i].Step = int64(s.number(v))
		}
	case "optimizer":
		for i, v := range strings.Split(value, "|") {
			r.Rank[i].OptimizerSteps = int64(s.number(v))
		}
	case "resumed":
		for i, v := range strings.Split(value, "|") {
			if r.Rank[i].ResumeKnown = v != "-"; v != "-" {
				r.Rank[i].ResumedAt = int64(s.number(v))
			}
		}
	case "sealed":
		for i, v := range strings.Split(value, "|") {
			r.Rank[i].Sealed = nil
			for _, n := range strings.Split(v, ",") {
				if n != "" {
					r.Rank[i].Sealed = append(r.Rank[i].Sealed, s.point(n))
				}
			}
		}
	case "exit":
		p := strings.SplitN(value, ":", 4)
		r.Rank[s.number(p[0])].Exit = &protocol.Exit{Code: s.number(p[1]), Signal: s.number(p[2]), At: s.now, Traceback: p[3]}
	case "restoring":
		r.Rank[s.number(value)].Exit.Restoring = true
	case "standby":
		for i := range r.Rank {
			r.Rank[i].FromStandby = value == "yes"
		}
	case "t":
		s.timeline(r, value)
	default:
		s.t.Fatalf("unknown key %q", key)
	}
}

// look answers the look that the coordinator wants: each local rank waits for the others in an operation, or in one of another group
// ("ring"), calls another one ("other"), sleeps, sleeps and reads, takes no signal ("stuck"), waits for its device, for NFS, is stopped,
// sleeps in a phase of 20 min ("evaluates"), shows nothing of what it is in ("hidden"), or was not looked at ("missing").
func (s *stage) look(slot int, r *protocol.Report, value string) {
	r.Look, r.Looks = s.state.Directive(Slot(slot), s.pods[slot].UID).Look, nil
	for i, v := range strings.Split(value, "|") {
		if v != "missing" {
			r.Looks = append(r.Looks, lookAt(i, v, s.state.members.World(), s.now))
		}
	}
}

// answer sends a pod's report, with the answer to the look that is wanted.
func (s *stage) answer(slot int, what string) {
	r := &s.reports[slot]
	d := s.state.Directive(Slot(slot), s.pods[slot].UID)
	if d.Look > r.Look {
		s.look(slot, r, what)
	}
	if r.Kept = max(r.Kept, d.Keep); s.unkept {
		r.Kept = 0
	}
	r.Sequence++
	sent := *r
	sent.Rank = slices.Clone(r.Rank)
	s.quietly(Reported{Slot: Slot(slot), Pod: s.pods[slot], Report: sent})
}

// lookAt returns a look at a rank, as stage.look names them.
func lookAt(local int, what string, world int, now time.Time) protocol.Look {
	l := protocol.Look{Local: local, PID: 100 + local, Stack: protocol.StackFresh, State: 'S'}
	g := protocol.GroupLook{Name: "0", Ranks: []protocol.RankRange{{Count: world, Step: 1}}, Enqueued: 4, Completed: 4}
	l.Frames = []protocol.Frame{{Function: "load_batch", File: "app/train.py", Line: 20}}
	waits := func(name string) {
		g.Enqueued, g.Open = 5, &protocol.Operation{Seq: 5, Name: name}
		l.Frames, l.Native = []protocol.Frame{{Function: "all_reduce", File: "distributed/distributed_c10d.py", Line: 1}}, ""
	}
	switch l.Native = "hrtimer_nanosleep"; what {
	case "waits":
		waits("gloo:all_reduce")
	case "other":
		waits("gloo:broadcast")
	case "ring":
		ring := protocol.GroupLook{Name: "1", Ranks: g.Ranks, Enqueued: 3, Completed: 2, Open: &protocol.Operation{Seq: 3, Name: "gloo:barrier"}}
		l.Frames, l.Native = []protocol.Frame{{Function: "barrier", File: "distributed/distributed_c10d.py", Line: 1}}, ""
		l.Groups = append(l.Groups, ring)
	case "reads":
		l.IO = uint64(now.UnixNano())
	case "evaluates":
		l.Phase = &protocol.Phase{Name: "evaluation", Left: 17 * time.Minute, Of: 20 * time.Minute}
	case "device":
		l.Frames, l.Native = []protocol.Frame{{Function: "synchronize", File: "cuda/__init__.py", Line: 1}}, ""
	case "stuck":
		l.Stack, l.Frames, l.Native = protocol.StackWithheld, nil, ""
	case "nfs":
		l.Stack, l.Frames, l.Native, l.State = protocol.StackWithheld, nil, "nfs_wait_bit_killable", 'D'
	case "stopped":
		l.Stack, l.Frames, l.Native, l.State = protocol.StackWithheld, nil, "", 'T'
	case "hidden":
		l.Stack, l.Frames = protocol.StackNone, nil
		return l
	}
	l.Groups = append(l.Groups, g)
	return l
}

// mark reads POINT@GENERATION.
func (s *stage) mark(value string) protocol.Mark {
	point, generation, _ := strings.Cut(value, "@")
	p := s.point(point)
	return protocol.Mark{Step: p.Step, Generation: int64(s.number(generation)), Branch: p.Branch}
}

// point reads STEP, of the first branch, or BRANCH/STEP.
func (s *stage) point(value string) protocol.Point {
	branch, step, ok := strings.Cut(value, "/")
	if !ok {
		branch, step = "0", value
	}
	return protocol.Point{Branch: int64(s.number(branch)), Step: int64(s.number(step))}
}

// of returns the branch of a step as text; "" for the first branch.
func of(branch int64) string {
	if branch == 0 {
		return ""
	}
	return fmt.Sprintf("%d/", branch)
}

func (s *stage) timeline(r *protocol.Report, value string) {
	fields := map[string]*time.Time{"detected": &r.Timeline.Detected, "halt": &r.Timeline.HaltReceived, "stopped": &r.Timeline.Stopped,
		"started": &r.Timeline.Started, "restored": &r.Timeline.Restored, "first": &r.Timeline.FirstStep}
	for _, kv := range strings.Split(value, ",") {
		k, v, _ := strings.Cut(kv, ":")
		*fields[k] = time.Unix(1_700_000_000, 0).UTC().Add(time.Duration(s.number(v)) * time.Millisecond)
	}
	if t := &r.Timeline; !t.Started.IsZero() && t.RunReceived.IsZero() {
		t.RunReceived = t.Started
	}
}

func branched(branch int64) string {
	if branch == 0 {
		return ""
	}
	return fmt.Sprintf("branch %d, ", branch)
}

func (s *stage) since(at time.Time) time.Duration {
	if at.IsZero() {
		return NotReached
	}
	return at.Sub(time.Unix(1_700_000_000, 0))
}

func (s *stage) sayf(format string, args ...any) { fmt.Fprintf(s.out, "  "+format+"\n", args...) }

func (s *stage) at(ms string) time.Time {
	return time.Unix(1_700_000_000, 0).UTC().Add(time.Duration(s.number(ms)) * time.Millisecond)
}

func (s *stage) step(e Event) {
	was := *s.state.rec()
	s.show(e, &was, Step(s.state, e, s.now))
}

// quietly drops queries to the API server, which repeat every few seconds.
func (s *stage) quietly(e Event) {
	was := *s.state.rec()
	s.show(e, &was, slices.DeleteFunc(Step(s.state, e, s.now), func(e Effect) bool { _, seek := e.(LookupHolders); return seek }))
}

func (s *stage) show(e Event, was *Record, effects []Effect) {
	notified := false
	for _, eff := range effects {
		switch eff := eff.(type) {
		case Persist:
			s.pending = append(s.pending, eff)
			s.sayf("persist generation %d %s", eff.Record.Generation, eff.Record.Phase)
			s.storage(&eff.Record)
			if n := len(eff.Record.Recoveries); n > 0 && eff.Record.Recoveries[n-1].Waited.Ranks > 0 {
				w := eff.Record.Recoveries[n-1].Waited
				s.sayf("  waited for %d ranks of slot %d for %s", w.Ranks, w.Slot, w.For)
			}
			if v := eff.Record.Verdict; v != nil {
				s.verdict(*v)
			}
		case End:
			s.sayf("end the job: %s", eff.Verdict.Reason)
		case EmitEvent:
			s.sayf("event %s: %s", eff.Notice.Reason, eff.Notice.Message)
		case GoBackRefused:
			s.sayf("does not go back: %s", eff.Why)
		case Replace:
			s.sayf("replace %s of slot %d: %s", eff.Termination.Name, eff.Termination.Slot, eff.Termination.Why())
		case LookupHolders:
			s.sayf("look up the pods of slots %v", eff.Slots)
		case LookupNodes:
			s.sayf("look up the nodes %v", eff.Names)
		case Checked:
			s.sayf("checked: %s, %d named", cmp.Or(eff.Result, CheckUnderWay), eff.Named)
		case Broadcast:
			notified = true
		case PersistLater, Settled:
		}
	}
	s.promises.record(was, s.state.rec())
	for i, p := range s.pods {
		s.promises.directive(e, i, p.UID, s.state.Directive(Slot(i), p.UID), notified, s.stored.Generation)
	}
	s.directives(func(pod string) bool { return notified || answers(e, pod) })
}

// storage prints the pods to be replaced and the stored steps of a record.
func (s *stage) storage(r *Record) {
	if len(r.Terminations()) > 0 {
		names := []string{}
		for _, d := range r.Terminations() {
			names = append(names, d.Name)
		}
		s.sayf("  pending %s", strings.Join(names, " "))
	}
	if d := r.Durable; d != nil {
		s.sayf("  durable %s%d@%d", of(d.Branch), d.Step, d.Generation)
	}
	for _, b := range r.Branches {
		s.sayf("  branch %d from %d", b.Branch, b.From)
	}
	for _, c := range r.Copies {
		s.sayf("  copy of rank %d: %s%d@%d", c.Rank, of(c.Branch), c.Step, c.Generation)
	}
}

func (s *stage) verdict(v Verdict) {
	s.sayf("verdict %s, exit code %d", v.Reason, v.ExitCode)
	if v.Cause != nil {
		s.sayf("cause %s rank %d slot %d, cascade %d: %s", v.Cause.Code, v.Cause.Rank, v.Cause.Slot, v.Cause.Cascade, cause.LastLine(v.Cause.Message))
	}
}

// directives prints the directives that changed; notified: the agent of a pod has received it.
var look = regexp.MustCompile(` (look|keep) -?\d+`)

func (s *stage) directives(notified func(pod string) bool) {
	names := map[protocol.Order]string{protocol.OrderWait: "wait", protocol.OrderRun: "run", protocol.OrderHalt: "halt", protocol.OrderExit: "exit"}
	for i, p := range s.pods {
		d := s.state.Directive(Slot(i), p.UID)
		line := fmt.Sprintf("%s %d", names[d.Order], d.Generation)
		if r := d.Run; r.WorldSize > 0 {
			line += fmt.Sprintf(
				" (world %d, base %d, node %d/%d, %s:%d, %sfrom %s%d, restart %d)",
				r.WorldSize,
				r.BaseRank,
				r.NodeRank,
				r.Nodes,
				r.MasterAddr,
				r.MasterPort,
				branched(r.Branch),
				of(r.RestoreBranch),
				r.RestoreStep,
				r.RestartCount,
			)
		} else if r != (protocol.Run{}) {
			line += fmt.Sprintf(" (%sfrom %s%d)", branched(r.Branch), of(r.RestoreBranch), r.RestoreStep)
		}
		if r := d.Run; r.Slots > 0 || r.Donor > 0 {
			line += fmt.Sprintf(" of %d slots, donor %d", r.Slots, r.Donor-1)
		}
		if d.CommonStep+d.ReclaimBelow > 0 {
			line += fmt.Sprintf(" common %d reclaim below %d", d.CommonStep, d.ReclaimBelow)
		}
		if d.Order == protocol.OrderExit {
			line += fmt.Sprintf(" with %d", d.ExitCode)
		}
		if d.BarrierStep > 0 {
			line += fmt.Sprintf(" barrier %d", d.BarrierStep)
		}
		if d.DurableStep > 0 {
			line += fmt.Sprintf(" durable %s%d", of(d.DurableBranch), d.DurableStep)
		}
		if m := d.Copy; m != (protocol.Mark{}) {
			line += fmt.Sprintf(" copy %s%d@%d", of(m.Branch), m.Step, m.Generation)
		}
		if d.CopyNext > 0 {
			line += fmt.Sprintf(" copy next from %d", d.CopyNext)
		}
		if m := d.Fetch; m != (protocol.Mark{}) {
			line += fmt.Sprintf(" fetch %s%d@%d", of(m.Branch), m.Step, m.Generation)
		}
		if m := d.Manifest; m.Step != 0 {
			line += fmt.Sprintf(" manifest %s%d@%d %v", of(m.Branch), m.Step, m.Generation, m.Ranks)
			for _, o := range m.Recorded {
				line += fmt.Sprintf(" recorded %s%d@%d", of(o.Branch), o.Step, o.Generation)
			}
		}
		if d.Launch > 1 {
			line += fmt.Sprintf(" launcher %d", d.Launch)
		}
		if d.Look > 0 {
			line += fmt.Sprintf(" look %d", d.Look-1_700_000_000)
		}
		if d.Keep > 0 {
			line += fmt.Sprintf(" keep %d", d.Keep-1_700_000_000)
		}
		if d.WholeCommand {
			line += " whole command"
		}
		if d.HaltWithin > 0 {
			line += fmt.Sprintf(" within %s", d.HaltWithin)
		}
		if d.Launched {
			line += " launched"
		}
		if d.Reason != "" {
			line += ": " + d.Reason
		}
		if line != s.last[i] {
			same := s.looking && look.ReplaceAllString(line, "") == look.ReplaceAllString(s.last[i], "")
			if s.last[i] = line; !notified(p.UID) {
				s.t.Errorf("slot %d is not told: %s", i, line)
			}
			if !same {
				s.sayf("slot %d: %s", i, line)
			}
		}
	}
}
