package nodehealth

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxEvidence bounds Verdict.Evidence.
const MaxEvidence = 8

// Verdict is the conclusion from a node's state.
type Verdict struct {
	Action Action
	Cause  Cause
	// Message and Next are for users.
	Message, Next string
	// Since is when the cause was first seen; zero: nothing is wrong.
	Since    time.Time
	Devices  []string
	Evidence []Evidence
	// Known is false if nothing is known to be wrong because nothing can be queried; Message has the reason.
	Known bool
	// Released is the setting that made the daemon release the GPUs; empty: they are not released.
	Released string
	// Soft: pods repair the node, so pods other than gangs' may be placed there.
	Soft bool
	// Resettable: the node cannot run training until a GPU is reset, so the daemon must keep GPUs open only for moments.
	Resettable bool
	// Boot and Settled let a later process continue from here.
	Boot    string
	Settled uint64
	Seen    Seen
}

// Seen is the hardware that was seen; missing hardware is found by it.
type Seen struct {
	// GPUs is how many the node should have, 0: unknown; under any boot.
	GPUs int
	// Links is, by GPU, the most NVLinks that were active under this boot; every GPU that NVML listed has an entry.
	Links map[string]int
}

// Evidence is one observation.
type Evidence struct {
	At     time.Time
	Source Source
	Device string
	Cause  Cause
	Text   string
}

// Assess returns the verdict for the present state. Evidence has only findings that require an action.
func Assess(s State, now time.Time) Verdict {
	v := Verdict{Boot: s.boot, Settled: s.settled, Known: true, Seen: s.seen(), Released: s.released}
	var live []finding
	for _, f := range s.findings {
		if f.action() > None && !s.gone(f, now) {
			live = append(live, f)
		}
	}
	if len(live) == 0 {
		v.Message = "nothing is wrong"
		if s.read.IsZero() || s.blind != "" {
			v.Known, v.Message = false, "no GPU driver has answered yet"
			if s.blind != "" {
				v.Message = s.blind
			}
		}
		return v
	}
	slices.SortStableFunc(live, worse)
	row := Catalogue[rank(live[0].cause)]
	v.Action, v.Cause, v.Next, v.Since = live[0].action(), row.Cause, row.Next, live[0].first
	for _, f := range live {
		if f.cause == v.Cause {
			v.Since = earlier(v.Since, f.first)
		}
		v.Soft = v.Soft || slices.Contains(byPods, f.cause)
		v.Resettable = v.Resettable || f.action() == Evict && slices.Contains(byReset, f.cause)
		if f.device != "" && f.action() == v.Action && !slices.Contains(v.Devices, f.device) {
			v.Devices = append(v.Devices, f.device)
		}
	}
	slices.Sort(v.Devices)
	v.Message = s.message(row, v.Action, live)
	v.Evidence = evidence(live)
	return v
}

func (s State) seen() Seen {
	out := Seen{GPUs: s.gpus}
	for _, d := range s.devices {
		if out.Links == nil {
			out.Links = map[string]int{}
		}
		out.Links[d.id] = d.links
	}
	return out
}

// action returns what the finding alone requires.
func (f finding) action() Action {
	row := Catalogue[rank(f.cause)]
	switch {
	case row.Action == Evict && !f.confirmed:
		return Exclude
	case row.Action == None && row.Repeat > 0 && f.count >= row.Repeat:
		return Watch
	}
	return row.Action
}

// worse orders findings: the strongest action, then the more specific cause, then the older, then the device.
func worse(a, b finding) int {
	if d := int(b.action()) - int(a.action()); d != 0 {
		return d
	}
	if d := rank(a.cause) - rank(b.cause); d != 0 {
		return d
	}
	if d := a.first.Compare(b.first); d != 0 {
		return d
	}
	return strings.Compare(a.device, b.device)
}

func (s State) message(row Row, action Action, live []finding) string {
	var text strings.Builder
	if live[0].device != "" {
		fmt.Fprintf(&text, "%s: ", live[0].device)
	}
	text.WriteString(row.Meaning)
	switch {
	case !row.Confirm || action == row.Action:
	case s.blind != "" && s.unread():
		text.WriteString("; no driver answers, so the mark ends when the fault does not recur")
	default:
		text.WriteString("; waiting for the driver to say what it asks for")
	}
	if s.released != "" {
		fmt.Fprintf(&text, "; GPUs released: %s", s.released)
	}
	if n := len(live) - 1; n > 0 {
		fmt.Fprintf(&text, "; and %d more", n)
	}
	return text.String()
}

// evidence returns the worst findings, oldest first.
func evidence(live []finding) []Evidence {
	var out []Evidence
	for _, f := range live[:min(len(live), MaxEvidence)] {
		out = append(out, Evidence{At: f.first, Source: f.source, Device: f.device, Cause: f.cause, Text: f.text})
	}
	slices.SortStableFunc(out, func(a, b Evidence) int { return a.At.Compare(b.At) })
	return out
}
