//go:build linux

package watch

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

// numbers are those of collectives.
type numbers struct{ enqueued, completed int64 }

// tally is what one backend's record has of one group.
type tally struct {
	name, backend string
	members       []protocol.RankRange
	at            int64 // when its newest operation was enqueued
	p2p           bool  // it has send or recv
	enqueued      int64
	started       int64
	open, last    *entry // the oldest that is not completed, and the newest
	collective    *entry // the oldest collective that is not completed
	quiet         *numbers
}

// add adds an entry; entries come in the order in which they were enqueued.
func (t *tally) add(e entry) {
	t.at, t.last = e.CreatedAt, &e
	t.p2p = t.p2p || e.IsP2P || e.P2P > 0
	if !e.IsP2P {
		if t.enqueued = max(t.enqueued, e.Collective); e.StartedAt > 0 || e.State == "started" || e.State == "completed" {
			t.started = max(t.started, e.Collective)
		}
	}
	if e.State == "completed" || e.Retired && t.backend == "gloo" {
		return
	}
	if t.open == nil {
		t.open = &e
	}
	if t.collective == nil && !e.IsP2P {
		t.collective = &e
	}
}

func (t *tally) isOpen() int {
	if t.open != nil || t.quiet != nil && t.quiet.completed < t.quiet.enqueued {
		return 1
	}
	return 0
}

// look returns the group as it is reported, with members only if all are ranks of a world of that size.
func (t *tally) look(world int) protocol.GroupLook {
	g := protocol.GroupLook{Name: cut(t.backend+":"+t.name, protocol.MaxLookText)}
	if len(t.members) <= protocol.MaxLookRanges && within(t.members, world) {
		g.Ranks = t.members
	}
	if q := t.quiet; q != nil {
		g.Enqueued, g.Completed = q.enqueued, q.completed
		if q.completed < q.enqueued {
			g.Open = &protocol.Operation{Seq: q.completed + 1}
		}
		return g
	}
	g.Enqueued, g.Started, g.Completed = t.enqueued, t.started, t.enqueued
	g.Open, g.Last = t.operation(t.open), t.operation(t.last)
	if t.collective != nil {
		g.Completed = t.collective.Collective - 1
	}
	if t.byOp() { // its record lacks completed entries, and the status of other ranks counts so
		shift := t.last.Op - t.last.Collective
		g.Enqueued, g.Completed = g.Enqueued+shift, g.Completed+shift
		if g.Started > 0 {
			g.Started += shift
		}
	}
	return g
}

func (t *tally) byOp() bool { return t.backend == "nccl2" && !t.p2p && t.last != nil }

func (t *tally) operation(e *entry) *protocol.Operation {
	if e == nil {
		return nil
	}
	_, name, _ := strings.Cut(e.Name, ":")
	o := &protocol.Operation{Seq: e.Collective, P2P: e.IsP2P, Sizes: sizes(e)}
	switch {
	case e.IsP2P:
		o.Seq = e.P2P
		o.Peer = t.peer(name)
		name, _, _ = strings.Cut(name, " ")
	case t.byOp():
		o.Seq = e.Op
	}
	o.Name = cut(name, protocol.MaxLookText)
	return o
}

// peer returns the global rank of the other side of "send 0->1" or "recv 1<-0", whose numbers are ranks in the group; -1: unknown.
func (t *tally) peer(name string) int {
	for _, arrow := range []string{"->", "<-"} {
		if _, to, ok := strings.Cut(name, arrow); ok {
			if i, err := strconv.Atoi(to); err == nil && i >= 0 {
				return nth(t.members, i)
			}
		}
	}
	return -1
}

// nth returns a member of a group by its rank in it; -1: there is none.
func nth(ranks []protocol.RankRange, i int) int {
	for _, r := range ranks {
		if i < r.Count {
			return r.First + i*r.Step
		}
		i -= r.Count
	}
	return -1
}

// sizes returns the sizes and types of an operation's inputs, such as "2x3,4 Float". What is too long ends with its hash, so that different
// ones stay different.
func sizes(e *entry) string {
	var b strings.Builder
	for i, of := range e.Sizes {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, n := range of {
			if j > 0 {
				b.WriteByte('x')
			}
			b.WriteString(strconv.FormatInt(n, 10))
		}
	}
	for i, kind := range e.Types {
		if i == 0 || kind != e.Types[i-1] {
			b.WriteString(" " + kind)
		}
	}
	text := b.String()
	if len(text) <= mostSizes {
		return text
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return cut(text, mostSizes-9) + fmt.Sprintf("#%08x", h.Sum32())
}

// cut returns the first bytes of a text, at most that many, as valid UTF-8.
func cut(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
