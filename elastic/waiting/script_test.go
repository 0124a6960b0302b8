package waiting

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestScripts plays testdata/*.txt; the commands are
//
//	ranks N PER-NODE             ranks in user code with a stack and no recorder
//	group NAME RANKS [unknown]   as "0,1,2"; its members have a recorder, which may not know who they are
//	set RANKS KEY=VALUE ...      "*" for all; blanks in values are written as "~"
//	                             open=GROUP:NUMBER:NAME:SIZES, p2p=GROUP:PEER:NAME, done=GROUP:NUMBER, started=GROUP:NUMBER;
//	                             faults=RANK:FAULT,…, as NCCL's RAS answered, or faults=none;
//	                             phase=LEFT/OF:NAME in seconds, or phase=none;
//	                             frames=FUNCTION@FILE:LINE|… (innermost first), native, state, pid, stack=none|withheld, ended=yes
//	adds RANKS cpu|main|io N     from each look to the next
//	look [except RANKS]          one look at all ranks, 5 s after the previous one; the newest three are judged
//	verdict
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		s := &stage{t: t, out: out, now: time.Unix(1_700_000_000, 0)}
		return func(line string) { s.command(strings.Fields(line)) }
	})
}

var stacks = map[string]protocol.StackState{"none": protocol.StackNone, "fresh": protocol.StackFresh, "withheld": protocol.StackWithheld}

var faults = map[string]protocol.Fault{
	"silent":  protocol.FaultSilent,
	"error":   protocol.FaultError,
	"behind":  protocol.FaultBehind,
	"unknown": 9,
}

// kept is how many looks are judged.
const kept = 3

type stage struct {
	t     *testing.T
	out   *strings.Builder
	now   time.Time
	ranks []Rank
	next  []protocol.Look
	adds  []protocol.Look
}

func (s *stage) command(f []string) {
	switch f[0] {
	case "ranks":
		n, per := s.number(f[1]), s.number(f[2])
		s.ranks, s.next, s.adds = make([]Rank, n), make([]protocol.Look, n), make([]protocol.Look, n)
		for r := range n {
			s.ranks[r] = Rank{Slot: r / per, Node: fmt.Sprintf("gpu-%02d", r/per)}
			s.next[r] = protocol.Look{PID: 100 + r, Stack: protocol.StackFresh, State: 'S', Frames: s.frames("main@app/train.py:10")}
		}
	case "group":
		members := s.those(f[2])
		for _, r := range members {
			g := protocol.GroupLook{Name: f[1]}
			if len(f) == 3 {
				g.Ranks = protocol.Ranges(members)
			}
			s.next[r].Groups = append(s.next[r].Groups, g)
		}
	case "set":
		for _, r := range s.those(f[1]) {
			for _, kv := range f[2:] {
				k, v, _ := strings.Cut(kv, "=")
				s.set(r, k, strings.ReplaceAll(v, "~", " "))
			}
		}
	case "adds":
		for _, r := range s.those(f[1]) {
			switch n := s.number(f[3]); f[2] {
			case "cpu":
				s.adds[r].CPU = time.Duration(n) * time.Millisecond
			case "main":
				s.adds[r].CPU, s.adds[r].MainCPU = time.Duration(n)*time.Millisecond, time.Duration(n)*time.Millisecond
			case "io":
				s.adds[r].IO = uint64(n)
			}
		}
	case "look":
		s.look(f[1:])
	case "verdict":
		v := Judge(s.ranks)
		if len(v.Text) > MaxText {
			s.t.Errorf("the text has %d bytes: %s", len(v.Text), v.Text)
		}
		fmt.Fprintf(s.out, "  %s: %s\n", v.Kind, v.Text)
		fmt.Fprintf(s.out, "  culprits %v, signature %q\n", v.Culprits, v.Signature)
	default:
		s.t.Fatalf("unknown command %q", f[0])
	}
}

func (s *stage) look(except []string) {
	skip := map[int]bool{}
	if len(except) > 0 {
		for _, r := range s.those(except[1]) {
			skip[r] = true
		}
	}
	s.now = s.now.Add(5 * time.Second)
	for r := range s.ranks {
		l := &s.next[r]
		l.CPU, l.MainCPU, l.IO = l.CPU+s.adds[r].CPU, l.MainCPU+s.adds[r].MainCPU, l.IO+s.adds[r].IO
		if skip[r] || s.ranks[r].Ended {
			continue
		}
		c := *l
		c.Groups = append([]protocol.GroupLook(nil), l.Groups...)
		looks := append(s.ranks[r].Looks, Look{s.now, &c})
		s.ranks[r].Looks = looks[max(0, len(looks)-kept):]
	}
}

func (s *stage) set(r int, key, value string) {
	l := &s.next[r]
	p := strings.SplitN(value, ":", 4)
	switch key {
	case "open":
		g, n := s.group(l, p[0]), int64(s.number(p[1]))
		o := &protocol.Operation{Seq: n, Name: "gloo:" + p[2], Sizes: strings.Join(p[3:], "")}
		g.Enqueued, g.Completed, g.Open, g.Last = n, n-1, o, o
	case "p2p":
		s.group(l, p[0]).Open = &protocol.Operation{Seq: 1, P2P: true, Peer: s.number(p[1]), Name: "gloo:" + p[2]}
	case "done":
		g, n := s.group(l, p[0]), int64(s.number(p[1]))
		g.Enqueued, g.Completed, g.Open = n, n, nil
	case "started":
		s.group(l, p[0]).Started = int64(s.number(p[1]))
	case "faults":
		l.Faults = s.faults(value)
	case "phase":
		l.Phase = s.phase(value)
	case "frames":
		l.Frames = s.frames(value)
	case "native":
		l.Native = value
	case "state":
		l.State = value[0]
	case "stack":
		l.Stack, l.Frames = stacks[value], nil
	case "ended":
		s.ranks[r] = Rank{Ended: true, Slot: s.ranks[r].Slot, Node: s.ranks[r].Node}
	default:
		s.t.Fatalf("unknown key %q", key)
	}
}

func (s *stage) group(l *protocol.Look, name string) *protocol.GroupLook {
	for i := range l.Groups {
		if l.Groups[i].Name == name {
			return &l.Groups[i]
		}
	}
	s.t.Fatalf("no group %q", name)
	return nil
}

func (s *stage) frames(text string) (out []protocol.Frame) {
	for f := range strings.SplitSeq(text, "|") {
		function, where, _ := strings.Cut(f, "@")
		file, line, _ := strings.Cut(where, ":")
		out = append(out, protocol.Frame{Function: function, File: file, Line: s.number(line)})
	}
	return out
}

func (s *stage) phase(text string) *protocol.Phase {
	if text == "none" {
		return nil
	}
	lease, name, _ := strings.Cut(text, ":")
	left, of, _ := strings.Cut(lease, "/")
	return &protocol.Phase{Name: name, Left: time.Duration(s.number(left)) * time.Second, Of: time.Duration(s.number(of)) * time.Second}
}

func (s *stage) faults(text string) (out []protocol.RankFault) {
	if text == "none" {
		return nil
	}
	for f := range strings.SplitSeq(text, ",") {
		rank, fault, _ := strings.Cut(f, ":")
		out = append(out, protocol.RankFault{Rank: s.number(rank), Fault: faults[fault]})
	}
	return out
}

func (s *stage) those(text string) (out []int) {
	if text == "*" {
		for r := range s.ranks {
			out = append(out, r)
		}
		return out
	}
	for r := range strings.SplitSeq(text, ",") {
		out = append(out, s.number(r))
	}
	return out
}

func (s *stage) number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatalf("%q is no number", v)
	}
	return n
}
