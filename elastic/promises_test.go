package elastic

import (
	"reflect"

	"holdfast.dev/holdfast/internal/protocol"
)

// promises are rules that hold after every step, in random histories and in scripts. They do not depend on golden files.
type promises struct {
	fail func(property, format string, args ...any)
	// runs has the run that slot 0 was ordered to do, by generation; last has the last directive of each pod; reported are the pods whose
	// agents have reported to this coordinator: no other gets a directive.
	runs     map[int64]protocol.Run
	last     map[string]protocol.Directive
	reported map[string]bool
}

func newPromises(fail func(property, format string, args ...any)) promises {
	return promises{fail: fail, runs: map[int64]protocol.Run{}, last: map[string]protocol.Directive{}, reported: map[string]bool{}}
}

// successor is called for a new coordinator, which has sent no directive yet.
func (p *promises) successor() {
	clear(p.last)
	clear(p.reported)
}

// record compares the record to be stored with the previous record.
func (p *promises) record(was, now *Record) {
	if now.Generation < was.Generation {
		p.fail("generation only rises", "%d after %d", now.Generation, was.Generation)
	}
	if now.Progress.LongestSilence < was.Progress.LongestSilence && now.Launch.Number == was.Launch.Number {
		p.fail("the longest silence only rises", "%s after %s", now.Progress.LongestSilence, was.Progress.LongestSilence)
	}
	if now.Generation > was.Generation && now.RestoreStep == 0 && was.Durable != nil {
		p.fail("no beginning over a stored step", "generation %d begins anew over %+v", now.Generation, *was.Durable)
	}
}

// answers reports whether a pod gets its directive because it has just reported.
func answers(e Event, pod string) bool {
	r, reported := e.(Reported)
	return reported && r.Pod.UID == pod
}

// directive checks the directive of a pod after an event. notified is true if all agents received their directives; stored is the newest
// generation in the store.
func (p *promises) directive(e Event, slot int, pod string, d protocol.Directive, notified bool, stored int64) {
	if answers(e, pod) {
		notified, p.reported[pod] = true, true
	}
	if old, known := p.last[pod]; known && p.reported[pod] && !notified && !reflect.DeepEqual(old, d) {
		p.fail("what changes is told", "%T left slot %d with %+v, it is %+v", e, slot, old, d)
	}
	p.last[pod] = d
	if d.Order != protocol.OrderRun {
		return
	}
	if d.Run.Number > stored {
		p.fail("no run before it is stored", "generation %d, stored %d", d.Run.Number, stored)
	}
	if d.Run.WorldSize == 0 {
		return
	}
	share := d.Run
	share.BaseRank, share.NodeRank = 0, 0
	if old, ok := p.runs[share.Number]; ok && old != share {
		p.fail("no number for two generations", "%+v and %+v", old, share)
	}
	p.runs[share.Number] = share
}
