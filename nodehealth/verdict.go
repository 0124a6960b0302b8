package nodehealth

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxEvidence bounds Verdict.Evidence.
const MaxEvidence = 8

// Verdict is what a node's state means.
type Verdict struct {
	Action Action
	Cause  Cause
	// Message and Next are for people.
	Message, Next string
	// Since is when the cause was first seen; zero where nothing is wrong.
	Since    time.Time
	Devices  []string
	Evidence []Evidence
	// Known is false while nothing is wrong only because nothing can be asked; Message says why.
	Known bool
	// Released is the setting that made the daemon release the GPUs; empty: they are not released.
	Released string
	// Soft: what repairs the node comes as pods, which are to be let in; gangs stay away all the same.
	Soft bool
	// Resettable: the node is of no use until a GPU is reset, so the daemon is to keep GPUs open for moments only.
	Resettable bool
	// Boot and Settled let a later process go on from here.
	Boot    string
	Settled uint64
	Seen    Seen
}

// Seen is what was there, by which what is missing is known.
type Seen struct {
	// GPUs is how many the node is to have, 0: nobody knows; under whatever boot.
	GPUs int
	// Links are the most NVLinks that were active under this boot, by GPU; every GPU that NVML listed has its line.
	Links map[string]int
}

// Evidence is one thing that was seen.
type Evidence struct {
	At     time.Time
	Source Source
	Device string
	Cause  Cause
	Text   string
}

// Assess says what the state means now. Only what asks for something is told.
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

// action is what the finding asks for by itself.
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

// worse orders findings: the strongest action, then the more telling cause, then the older, then the device.
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

// evidence is the worst of what was seen, oldest first.
func evidence(live []finding) []Evidence {
	var out []Evidence
	for _, f := range live[:min(len(live), MaxEvidence)] {
		out = append(out, Evidence{At: f.first, Source: f.source, Device: f.device, Cause: f.cause, Text: f.text})
	}
	slices.SortStableFunc(out, func(a, b Evidence) int { return a.At.Compare(b.At) })
	return out
}
