package ckptagent

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestScripts plays testdata/*.txt. Each line is an event; below it are the effects that Step returns and the resulting report.
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		now, s := time.Unix(0, 0), New()
		keeps, running := promises{started: map[int64]bool{}}, map[int]bool{}
		return func(line string) {
			now = now.Add(time.Second)
			e, skip := parseEvent(t, line, now, s)
			if skip > 0 {
				now = now.Add(skip)
				e = Tick{}
			}
			if l, ok := e.(Launched); ok {
				if ok, why := s.Matches(l); !ok {
					fmt.Fprintf(out, "  > the launcher is refused: %s\n", why)
					return
				}
				if l.ID != s.Launcher {
					keeps.returned = nil // each script has an answer of its own
				}
			}
			keeps.fail = func(format string, args ...any) {
				t.Errorf("%s: "+format, append([]any{line}, args...)...)
			}
			switch e := e.(type) {
			case Exited:
				delete(running, e.Local)
			case Gone:
				clear(running)
			case Resumed:
				if !e.SameContainer { // nothing that was in the earlier container
					clear(running)
					keeps.returned = nil
				}
			}
			var effects []Effect
			s, effects = Step(s, e, now)
			for _, f := range effects {
				fmt.Fprintf(out, "  > %s\n", showEffect(f))
				keeps.effect(f, len(running))
				if f, ok := f.(Start); ok && !f.FirstRun {
					for i := range f.Ranks {
						running[i] = true
					}
				}
			}
			keeps.state(s, len(running))
			fmt.Fprintf(out, "  %s\n", showReport(s.Report()))
		}
	})
}

func parseEvent(t *testing.T, line string, now time.Time, s State) (Event, time.Duration) {
	t.Helper()
	w := strings.Fields(line)
	opts := map[string]string{}
	var pos []int
	for _, f := range w[1:] {
		if k, v, ok := strings.Cut(f, "="); ok {
			opts[k] = v
		} else if n, err := strconv.Atoi(f); err == nil {
			pos = append(pos, n)
		}
	}
	num := func(k string) int { n, _ := strconv.Atoi(opts[k]); return n }
	gen := int64(num("gen"))
	if gen == 0 {
		gen = s.Run.Number
	}
	d := protocol.Directive{CommonStep: int64(num("common")), ReclaimBelow: int64(num("reclaim")), ExitCode: num("code")}
	if len(pos) > 0 {
		d.Generation = int64(pos[0])
	}
	d.DurableStep = int64(num("durable"))
	d.BarrierStep, d.Copy, d.Fetch = int64(num("barrier")), mark(opts["copy"]), mark(opts["fetch"])
	if m := mark(opts["manifest"]); m.Step != 0 {
		d.Manifest = protocol.Manifest{
			Mark:     m,
			Ranks:    []protocol.ManifestRank{{Length: 9, Checksum: 7}},
			Recorded: []protocol.Mark{{Step: 1, Generation: 1}},
		}
	}
	d.WantModules, d.Modules = opts["want"] == "modules", modules(num("modules"))
	d.Launch = num("launch")
	d.Look, d.Keep = int64(num("look")), int64(num("keep"))
	d.HaltWithin = time.Duration(num("within")) * time.Second
	d.WholeCommand, d.Launched = opts["whole"] == "yes", opts["launched"] == "yes"
	switch w[0] {
	case "resumed":
		return Resumed{SameContainer: opts["same"] != "no"}, 0
	case "launched":
		return Launched{ID: w[1], Ranks: num("ranks"), Nodes: num("nodes"), NodesFlag: "--nnodes=" + opts["nodes"]}, 0
	case "refused":
		return LaunchRefused{"bad flag"}, 0
	case "command":
		return CommandBegan{Command{PID: 50, BeganAt: now, Timeout: time.Duration(num("timeout")) * time.Second}}, 0
	case "command-ended":
		return CommandEnded{protocol.Exit{Code: num("code"), Signal: num("signal"), At: now, Traceback: opts["traceback"]}}, 0
	case "command-seen":
		return CommandSeen{Command: opts["command"], Now: opts["now"], PassedBy: opts["passed"]}, 0
	case "launcher-gone":
		return LauncherGone{}, 0
	case "wait":
		d.Order = protocol.OrderWait
		if opts["base"] != "" {
			d.Run = protocol.Run{BaseRank: num("base"), WorldSize: 4}
		}
	case "run":
		d.Order = protocol.OrderRun
		d.Run = protocol.Run{Number: d.Generation, WorldSize: 4, Nodes: 2, RestoreStep: int64(num("restore")), RestartCount: num("restarts"),
			Branch: int64(num("branch")), RestoreBranch: int64(num("of"))}
		if n := num("world"); n > 0 {
			d.Run.WorldSize = n
		}
		if n := num("nodes"); n > 0 {
			d.Run.Nodes = n
		}
	case "halt":
		d.Order = protocol.OrderHalt
		if opts["restore"] != "" {
			d.Run = protocol.Run{Number: d.Generation, RestoreStep: int64(num("restore")), Branch: int64(num("branch")), RestoreBranch: int64(num("of"))}
		}
	case "exit-job":
		d.Order = protocol.OrderExit
	case "started":
		if opts["pid"] != "" {
			return Started{Generation: gen, Local: pos[0], PID: num("pid")}, 0
		}
		return Started{Generation: gen, Local: pos[0], PID: 100 + pos[0], FromStandby: opts["standby"] != ""}, 0
	case "exited":
		return Exited{Generation: gen, Local: pos[0], Exit: protocol.Exit{Code: num("code"), Signal: num("signal"), At: now, Traceback: opts["traceback"]}}, 0
	case "gone":
		tb := map[int]Traceback{}
		if v := opts["traceback"]; v != "" {
			tb[0] = Traceback{v, now}
		}
		e := Gone{Tracebacks: tb}
		if opts["waited"] != "" {
			e.Waited = []int{num("waited")}
		}
		return e, 0
	case "inventory":
		var e Inventoried
		for _, f := range w[1:] {
			e.Sealed = append(e.Sealed, steps(f))
		}
		return e, 0
	case "progress":
		return Progress{Generation: gen, Local: pos[0], Attached: opts["attached"] != "", Restored: opts["restored"] != "", Step: int64(num("step"))}, 0
	case "optimizer":
		e := OptimizerSteps{Generation: gen, Local: pos[0], Steps: int64(num("steps")), ResumedAt: int64(num("resumed"))}
		e.ResumeKnown = opts["resumed"] != ""
		return e, 0
	case "sealed":
		return Sealed{Generation: gen, Local: pos[0], Steps: steps(opts["steps"])}, 0
	case "standby":
		return StandbyChanged{Local: pos[0], Ready: opts["ready"] != "no"}, 0
	case "signal":
		return Signalled{Signal: pos[0], Launcher: opts["by"] == "launcher"}, 0
	case "contact":
		return Contact{Up: w[1] == "up"}, 0
	case "dismissed":
		return DetachedFromJob{}, 0
	case "told":
		return Capabilities{Storage: opts["storage"] == "yes", Grace: time.Duration(num("grace")) * time.Second, Modules: modules(num("modules"))}, 0
	case "copied":
		return Copied{Local: pos[0], Copy: protocol.Copied{Mark: mark(opts["mark"]), Length: 9, Checksum: 7}, Took: time.Second}, 0
	case "manifest-written":
		return ManifestWritten{mark(opts["mark"])}, 0
	case "fetched":
		e := Fetched{Mark: mark(opts["mark"]), Failed: opts["failed"] != ""}
		for _, f := range strings.Split(opts["sealed"], "/") {
			e.Sealed = append(e.Sealed, steps(f))
		}
		return e, 0
	case "port":
		return PortOffered{pos[0]}, 0
	case "looked":
		e := Looked{Number: int64(pos[0]), Generation: gen}
		for _, local := range pos[1:] {
			e.Looks = append(e.Looks, protocol.Look{Local: local, PID: 100 + local})
		}
		return e, 0
	case "kept":
		return Kept{Number: int64(pos[0])}, 0
	case "tick":
		return Tick{}, 0
	case "pass":
		return nil, time.Duration(pos[0]) * time.Second
	default:
		t.Fatalf("unknown event %q", line)
	}
	return Directed{d}, 0
}

// mark reads step/generation.
func mark(f string) protocol.Mark {
	var m protocol.Mark
	_, _ = fmt.Sscanf(f, "%d/%d", &m.Step, &m.Generation)
	return m
}

func showMark(m protocol.Mark) string { return fmt.Sprintf("%d/%d", m.Step, m.Generation) }

// steps reads a list of steps: STEP of the first branch, or BRANCH:STEP.
func steps(f string) []protocol.Point {
	var out []protocol.Point
	for _, v := range strings.Split(f, ",") {
		branch, step, ok := strings.Cut(v, ":")
		if !ok {
			branch, step = "0", v
		}
		b, _ := strconv.ParseInt(branch, 10, 64)
		if n, err := strconv.ParseInt(step, 10, 64); err == nil {
			out = append(out, protocol.Point{Branch: b, Step: n})
		}
	}
	return out
}

func showSteps(points []protocol.Point) string {
	out := []string{}
	for _, p := range points {
		out = append(out, showStep(p))
	}
	return fmt.Sprint(out)
}

func showStep(p protocol.Point) string {
	if p.Branch == 0 {
		return fmt.Sprint(p.Step)
	}
	return fmt.Sprintf("%d:%d", p.Branch, p.Step)
}

// modules returns n names of modules.
func modules(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("m%d", i))
	}
	return names
}

func showEffect(e Effect) string {
	switch e := e.(type) {
	case SetModules:
		return fmt.Sprintf("set %d modules", len(e.Modules))
	case Start:
		if e.FirstRun {
			return fmt.Sprintf("generation %d is the run that init began", e.Run.Number)
		}
		of := ""
		if e.Run.Branch > 0 {
			of = fmt.Sprintf(" of branch %d", e.Run.Branch)
		}
		return fmt.Sprintf("start generation %d%s, %d ranks, from step %s", e.Run.Number, of, e.Ranks, showStep(e.Run.Restores()))
	case End:
		switch {
		case !e.ByLauncher:
			return fmt.Sprintf("end, gently within %s", e.Within)
		case e.Within > 0:
			return fmt.Sprintf("end, within %s", e.Within)
		}
		return "end"
	case SetBarrier:
		return fmt.Sprintf("barrier %d", e.Step)
	case CopyStep:
		return fmt.Sprintf("copy %s as ranks from %d of %d", showMark(e.Mark), e.BaseRank, e.World)
	case WriteManifest:
		var recorded []string
		for _, m := range e.Manifest.Recorded {
			recorded = append(recorded, showMark(m))
		}
		return fmt.Sprintf("write manifest %s of %d, recorded %v", showMark(e.Manifest.Mark), len(e.Manifest.Ranks), recorded)
	case Fetch:
		return fmt.Sprintf("fetch %s as ranks from %d", showMark(e.Mark), e.BaseRank)
	case TakeInventory:
		if e.Abandoned.Step > 0 {
			return fmt.Sprintf("take inventory, where generation %d restored step %s", e.Abandoned.Generation, showStep(e.Abandoned.Restores()))
		}
		return "take inventory"
	case Levels:
		text := fmt.Sprintf("levels common %d reclaim below %d", e.CommonStep, e.ReclaimBelow)
		if e.Durable.Step > 0 {
			text += " durable " + showStep(e.Durable)
		}
		return text
	case Return:
		return strings.TrimSpace(fmt.Sprintf("launcher returns %d %s", e.Returned.Code, e.Returned.Message))
	case OfferPort:
		return "offer port"
	case LookAt:
		return fmt.Sprintf("look %d at generation %d", e.Number, e.Generation)
	case KeepEvidence:
		return fmt.Sprintf("keep files for look %d at generation %d", e.Number, e.Generation)
	case Adopt:
		return "adopt the command"
	case Release:
		return "release the command"
	case InspectCommand:
		return "inspect the command"
	case Notice:
		return "notice: " + e.Text
	case Standbys:
		return fmt.Sprintf("warm standbys %v", e.Warm)
	}
	return fmt.Sprintf("%#v", e)
}

func showReport(r protocol.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", r.Generation, r.State)
	for i, rank := range r.Rank {
		fmt.Fprintf(&b, " [%d pid %d step %d sealed %s", i, rank.PID, rank.Step, showSteps(rank.Sealed))
		if rank.OptimizerSteps > 0 {
			fmt.Fprintf(&b, " optimizer %d", rank.OptimizerSteps)
		}
		if rank.ResumeKnown {
			fmt.Fprintf(&b, " resumed at %d", rank.ResumedAt)
		}
		if rank.Exit != nil {
			fmt.Fprintf(&b, " exit %d/%d %s", rank.Exit.Code, rank.Exit.Signal, rank.Exit.Traceback)
		}
		if rank.Copied.Mark.Step > 0 {
			fmt.Fprintf(&b, " copied %s", showMark(rank.Copied.Mark))
		}
		if rank.StandbyReady {
			b.WriteString(" standby")
		}
		b.WriteString("]")
	}
	if r.Launch > 1 {
		fmt.Fprintf(&b, " launcher %d", r.Launch)
	}
	if r.Returned > 0 {
		fmt.Fprintf(&b, " returned %d", r.Returned)
	}
	if r.WholeCommand {
		b.WriteString(" whole")
	}
	if r.LeftForLauncher > 0 {
		fmt.Fprintf(&b, " left %d for a launcher", r.LeftForLauncher)
	}
	if r.ModulesKnown > 0 {
		fmt.Fprintf(&b, " %d modules", r.ModulesKnown)
	}
	if len(r.Modules) > 0 {
		fmt.Fprintf(&b, " %v", r.Modules)
	}
	if r.Unprotected != "" {
		b.WriteString(" unprotected: " + r.Unprotected)
	}
	if r.Terminating {
		b.WriteString(" terminating")
	}
	if r.Manifested.Step > 0 {
		fmt.Fprintf(&b, " manifested %s", showMark(r.Manifested))
	}
	if r.BarrierStep > 0 {
		fmt.Fprintf(&b, " barrier %d", r.BarrierStep)
	}
	if r.FetchFailed.Step > 0 {
		fmt.Fprintf(&b, " cannot fetch %s", showMark(r.FetchFailed))
	}
	if r.Refused != "" {
		b.WriteString(" refused: " + r.Refused)
	}
	if r.Look > 0 {
		fmt.Fprintf(&b, " look %d", r.Look)
		for _, l := range r.Looks {
			fmt.Fprintf(&b, " %d", l.Local)
		}
	}
	if r.Kept > 0 {
		fmt.Fprintf(&b, " kept %d", r.Kept)
	}
	tl := r.Timeline
	for _, p := range []struct {
		name string
		at   time.Time
	}{
		{"detected", tl.Detected},
		{"halt", tl.HaltReceived},
		{"stopped", tl.Stopped},
		{"verified", tl.Verified},
		{"run", tl.RunReceived},
		{"started", tl.Started},
		{"restored", tl.Restored},
		{"first", tl.FirstStep},
	} {
		if !p.at.IsZero() {
			fmt.Fprintf(&b, " %s@%d", p.name, p.at.Unix())
		}
	}
	return b.String()
}
