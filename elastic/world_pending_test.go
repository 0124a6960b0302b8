package elastic

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/internal/protocol"
)

// outside is what surrounds the gang of a world: nodes that fail and recover, the controller that replaces pods, and storage.
type outside struct {
	unstored  bool // agents without storage
	mute      bool // agents do not confirm the barrier
	babbles   bool // in each report agents list other failed fetches
	level     []Termination
	delivered []Termination
	suspended bool          // the Job is suspended
	replacing []Termination // requested from the controller
	zombies   []zombie
	files     map[protocol.Mark]map[int]seal // by rank
	torn      map[protocol.Mark]bool

	pendingOnce map[string]bool // was in a level that was delivered, or is being deleted
	durable     int
	fetches     int
	replaced    int
	healed      int
	mended      int
	seeks       []Slot               // queries to the API server
	heardAt     map[string]time.Time // when each pod's agent last reported
	silenced    int
	deafened    int                    // slots among them, while these were more than half of the gang
	untold      map[protocol.Mark]bool // stored steps that may or may not have been given up
	drains      int
	stuck       int
	full        int // number of events at which the list of failed fetches was full
}

// zombie is a replaced pod that still runs.
type zombie struct {
	slot  int
	agent *simAgent
}

// pod2 is the state of an agent that concerns storage and drains.
type pod2 struct {
	dead, leaving           bool
	cut                     bool // the connection to the coordinator is cut
	hold                    int64
	copy                    protocol.Mark
	manifested, fetchFailed protocol.Mark
}

func (w *world) interval() time.Duration {
	if w.unstored {
		return 0
	}
	return 2 * time.Second
}

func (a *simAgent) held(k *simRank) bool {
	return a.hold > 0 && len(k.sealed) > 0 && k.sealed[len(k.sealed)-1].step >= a.hold
}

func rankOf(slot, local int) int { return 2*slot + local }

// obeyStorage carries out what a directive orders about barrier, copies and fetches.
func (w *world) obeyStorage(slot int, d protocol.Directive) {
	a := w.agents[slot]
	if w.unstored && (d.Copy != (protocol.Mark{}) || d.Manifest.Step != 0 || d.Fetch != (protocol.Mark{})) {
		w.failf("an agent without storage is told nothing of it", "%+v", d)
	}
	a.hold, a.copy = 0, d.Copy
	if d.Order == protocol.OrderRun && d.Generation == a.gen {
		a.hold = d.BarrierStep
	}
	for i := range a.ranks {
		k := &a.ranks[i]
		j := slices.IndexFunc(k.sealed, func(s seal) bool { return s.step == d.Copy.Step })
		if d.Copy == (protocol.Mark{}) || j < 0 || d.Copy.Generation != a.gen || w.rng.Intn(3) == 0 {
			continue
		}
		if w.files[d.Copy] == nil {
			w.files[d.Copy] = map[int]seal{}
		}
		if k.sealed[j].branch != d.Copy.Branch {
			w.failf("a mark names the branch of its step", "%+v is %+v", d.Copy, k.sealed[j])
		}
		w.files[d.Copy][rankOf(slot, i)] = k.sealed[j]
		k.copied = d.Copy
	}
	if m := d.Manifest; m.Step != 0 && w.rng.Intn(2) == 0 {
		for rank := range 2 * len(w.agents) {
			if _, ok := w.files[m.Mark][rank]; !ok || len(m.Ranks) != 2*len(w.agents) {
				w.failf("a manifest is of a whole step", "%+v lacks rank %d", m.Mark, rank)
			}
		}
		a.manifested = m.Mark
		if w.shelf != nil {
			w.ordered(m)
		}
	}
	if d.Fetch != (protocol.Mark{}) && !members.Ran(a.state) && w.rng.Intn(2) == 0 {
		w.fetch(slot, d.Fetch)
	}
}

func (w *world) fetch(slot int, mark protocol.Mark) {
	a := w.agents[slot]
	if w.torn[mark] {
		if w.rng.Intn(2) == 0 {
			a.makeRoom(mark) // newer steps were given up before the agent read the file
		}
		a.fetchFailed = mark
		return
	}
	w.fetches++
	a.fetchFailed = protocol.Mark{}
	for i := range a.ranks {
		k := &a.ranks[i]
		if !slices.ContainsFunc(k.sealed, func(s seal) bool { return s.point() == mark.Point() }) {
			file, ok := w.files[mark][rankOf(slot, i)]
			if !ok {
				w.failf("what is fetched is in storage", "rank %d of %+v", rankOf(slot, i), mark)
			}
			k.sealed = append(k.sealed, file)
		}
	}
	if mark.Branch < w.newest() {
		w.fromStorage++
	}
	a.makeRoom(mark)
	for i := range a.ranks {
		k := &a.ranks[i]
		slices.SortFunc(k.sealed, func(x, y seal) int { return int(x.step - y.step) })
		k.sealed = k.sealed[max(0, len(k.sealed)-3):]
	}
}

// makeRoom gives up steps that are newer than a fetched one, and steps of another history.
func (a *simAgent) makeRoom(mark protocol.Mark) {
	for i := range a.ranks {
		a.ranks[i].sealed = slices.DeleteFunc(a.ranks[i].sealed, func(s seal) bool {
			return s.step > mark.Step || s.branch > mark.Branch || s.step == mark.Step && s.branch != mark.Branch
		})
	}
}

// lose is called when acknowledged steps may become unavailable.
func (w *world) lose() {
	if p := w.obtainable(); p.Compare(w.acked) < 0 {
		w.acked = p
	}
}

// obtainable returns the newest acknowledged step that all ranks really hold, in the memory of living pods or in recorded storage.
func (w *world) obtainable() protocol.Point {
	if w.state.generation.RestoreStep == StepUnknown {
		return w.within(true)
	}
	for _, p := range w.acknowledged() {
		if w.has(p) {
			return p
		}
	}
	return protocol.Point{}
}

// has reports whether all ranks really hold a step.
func (w *world) has(p protocol.Point) bool {
	for slot, a := range w.agents {
		for i, k := range a.ranks {
			memory := !a.dead && slices.ContainsFunc(k.sealed, func(s seal) bool { return s.point() == p })
			if !memory && !w.recorded(p, rankOf(slot, i)) {
				return false
			}
		}
	}
	return true
}

// acknowledged returns, newest first, the steps up to the newest acknowledged one that some rank holds or that are on the line.
func (w *world) acknowledged() []protocol.Point {
	all := []protocol.Point{}
	add := func(p protocol.Point) {
		if p.Compare(w.acked) <= 0 && w.stored.Branches.Has(p) && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, a := range w.agents {
		for _, k := range a.ranks {
			for _, s := range k.sealed {
				add(s.point())
			}
		}
	}
	for _, d := range []*StoredStep{w.stored.Durable, w.stored.Older} {
		if d != nil {
			add(d.Point())
		}
	}
	for _, c := range w.stored.Copies {
		add(c.Point())
	}
	slices.SortFunc(all, func(a, b protocol.Point) int { return b.Compare(a) })
	return all
}

func (w *world) recorded(p protocol.Point, rank int) bool {
	for _, d := range []*StoredStep{w.stored.Durable, w.stored.Older} {
		if d != nil && d.Point() == p && !w.torn[d.Mark] {
			return true
		}
	}
	return slices.ContainsFunc(w.stored.Copies, func(c RankCopy) bool { return c.Rank == rank && c.Point() == p && !w.torn[c.Mark] })
}

// checkReplace checks that a pod is replaced only while it must be, and only after the replacement is stored.
func (w *world) checkReplace(d Termination) {
	committed := slices.ContainsFunc(w.stored.Recoveries, func(r Recovery) bool {
		return slices.ContainsFunc(r.Replaced, func(o Replacement) bool { return o.Pod == d.Pod })
	})
	listed := slices.ContainsFunc(w.delivered, func(o Termination) bool { return o.Pod == d.Pod })
	leaving := slices.ContainsFunc(w.agents, func(a *simAgent) bool { return a.pod.UID == d.Pod && a.leaving })
	m := w.state.members.At(d.Slot)
	orphan := m.Known() && m.Pod().UID != d.Pod // as far as the core knows, no rank runs in the pod
	switch {
	case !w.pendingOnce[d.Pod]:
		w.failf("a pod is replaced only while that is pending", "%+v was never", d)
	case w.state.generation.Begun() && !committed && !listed && !leaving && !orphan &&
		slices.ContainsFunc(w.agents, func(a *simAgent) bool { return a.pod.UID == d.Pod }):
		w.failf("healed before release is not replaced", "%+v", d)
	case w.state.generation.Begun() && !committed && !orphan:
		w.failf("replaced only once that is stored", "%+v", d)
	}
	w.replaced++
}

// checkCopies checks that no copy of a fenced pod is recorded, and that every recorded step is in storage.
func (w *world) checkCopies(was, now *Record) {
	for _, c := range now.Copies {
		if _, ok := w.files[c.Mark][c.Rank]; !ok {
			w.failf("what is recorded is in storage", "copy %+v", c)
		}
		if slices.Contains(was.Copies, c) {
			continue
		}
		w.drains++
		if i := slices.IndexFunc(was.PendingReplacements, func(d Termination) bool { return int(d.Slot) == c.Rank/2 }); i >= 0 &&
			was.PendingReplacements[i].Dead &&
			w.agents[c.Rank/2].pod.UID == was.PendingReplacements[i].Pod {
			w.failf("a fenced pod's copies are never recorded", "%+v of %+v", c, was.PendingReplacements[i])
		}
	}
	if d := now.Durable; d != nil && (was.Durable == nil || *was.Durable != *d) {
		w.durable++
		if len(w.files[d.Mark]) != 2*len(w.agents) {
			w.failf("what is durable is whole", "%+v has %d files", d, len(w.files[d.Mark]))
		}
	}
}

func (w *world) outsideChaos(slot int) {
	a := w.agents[slot]
	switch p := w.rng.Intn(100); {
	case p < 20:
		w.deliverLevel()
	case p < 40:
		w.carryOut()
	case p < 50:
		w.apply(Tick{})
		w.seek()
	case p < 55 && w.state.Record.Phase == Halting:
		w.muted(slot)
	case p < 60 && len(w.level) > 0: // a node heals
		i := w.rng.Intn(len(w.level))
		if w.level[i].Cause == replacements.PodDeleted { // a deletion cannot be withdrawn
			return
		}
		w.level = slices.Delete(slices.Clone(w.level), i, i+1)
		w.healed++
	case p < 66 && !w.listed(a):
		w.level = append(slices.Clone(w.level), w.terminationOf(slot, false))
		w.notef("slot %d is to be replaced", slot)
	case p < 69: // the node is silent; its pod may be alive or not
		w.level = slices.DeleteFunc(slices.Clone(w.level), func(d Termination) bool { return d.Pod == a.pod.UID })
		d := w.terminationOf(slot, true)
		if a.leaving {
			d.Cause = replacements.PodDeleted
		}
		w.level = append(w.level, d)
		if w.rng.Intn(2) == 0 {
			w.dies(slot)
		}
		w.notef("slot %d is silent", slot)
	case p < 72 && !a.dead:
		w.deleted(slot)
		w.notef("slot %d is leaving", slot)
	case p < 73: // a file is torn
		marks := slices.SortedFunc(maps.Keys(w.files), func(a, b protocol.Mark) int {
			return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Step, b.Step))
		})
		for _, mark := range marks {
			if w.rng.Intn(20) == 0 {
				w.torn[mark] = true
			}
		}
		w.lose()
	case p < 85 && len(w.zombies) > 0:
		z := w.zombies[w.rng.Intn(len(w.zombies))]
		w.apply(Reported{Slot: Slot(z.slot), Pod: z.agent.pod, Report: w.report(z.agent)})
	}
}

func (w *world) listed(a *simAgent) bool {
	return slices.ContainsFunc(w.level, func(d Termination) bool { return d.Pod == a.pod.UID })
}

func (w *world) terminationOf(slot int, dead bool) Termination {
	a := w.agents[slot]
	return Termination{Slot: Slot(slot), Pod: a.pod.UID, Name: a.pod.Name, Cause: "GPUFellOff", At: w.now, Dead: dead}
}

// deleted deletes the pod of a slot. Its agent gets SIGTERM, and the API server reports the deletion.
func (w *world) deleted(slot int) {
	a, d := w.agents[slot], w.terminationOf(slot, false)
	a.leaving, d.Cause = true, replacements.PodDeleted
	w.level = append(slices.DeleteFunc(slices.Clone(w.level), func(o Termination) bool { return o.Pod == d.Pod }), d)
}

// deleteJob deletes the Job in any phase of its gang, and terminates its pods. Each pod that reports may exit at once, and the coordinator
// does nothing more for the gang.
func (w *world) deleteJob() {
	step := func(e Event) {
		notified := false
		for _, eff := range Step(w.state, e, w.now) {
			switch eff.(type) {
			case Persist, End, Replace, LookupHolders:
				w.failf("nothing is done for a Job that is over", "%T %+v", eff, eff)
			case Broadcast:
				notified = true
			case PersistLater, EmitEvent, Settled, GoBackRefused:
			}
		}
		for slot, a := range w.agents {
			w.promises.directive(e, slot, a.pod.UID, w.state.Directive(Slot(slot), a.pod.UID), notified, w.stored.Generation)
		}
	}
	step(Over{})
	for slot, a := range w.agents {
		if a.dead {
			continue
		}
		a.leaving = true
		step(ReplacementsPending{Pods: []Termination{w.terminationOf(slot, false)}})
		step(Reported{Slot: Slot(slot), Pod: a.pod, Report: w.report(a)})
		w.now = w.now.Add(time.Minute)
		step(Tick{})
		if d := w.state.Directive(Slot(slot), a.pod.UID); d.Order != protocol.OrderExit || d.Generation < a.gen {
			w.failf("pods of a Job that is over go at once", "slot %d in generation %d is told %+v", slot, a.gen, d)
		}
	}
	for _, z := range w.zombies {
		if d := w.state.Directive(Slot(z.slot), z.agent.pod.UID); d.Order != protocol.OrderExit && !w.agents[z.slot].dead {
			w.failf("pods of a Job that is over go at once", "a pod that was replaced is told %+v", d)
		}
	}
}

func (w *world) dies(slot int) {
	a := w.agents[slot]
	a.dead = true
	for i := range a.ranks {
		a.ranks[i].alive = false
	}
	w.failures++
	w.lose()
}

func (w *world) deliverLevel() {
	w.delivered = w.level
	for _, d := range w.level {
		w.pendingOnce[d.Pod] = true
	}
	w.apply(level(slices.Clone(w.level)))
}

// level returns the controller's level for these pods.
func level(pods []Termination) Event {
	if len(pods) > 0 && pods[0].Cause == replacements.JobSuspended {
		return Suspended{Pods: pods}
	}
	return ReplacementsPending{Pods: pods}
}

// carryOut carries out one requested replacement.
func (w *world) carryOut() {
	if len(w.replacing) == 0 {
		return
	}
	d := w.replacing[0]
	w.replacing = w.replacing[1:]
	w.swap(d)
	w.apply(Released{Pod: d.Pod, At: w.now})
}

// swap removes a pod from its Job, and creates another pod.
func (w *world) swap(d Termination) {
	w.level = slices.DeleteFunc(slices.Clone(w.level), func(o Termination) bool { return o.Pod == d.Pod })
	if a := w.agents[d.Slot]; a.pod.UID == d.Pod {
		if !a.dead {
			w.zombies = append(w.zombies, zombie{int(d.Slot), a})
		}
		w.replace(int(d.Slot))
	}
}

// crashReplacing ends the controller during a replacement: the replacement is carried out or not, and is not reported.
func (w *world) crashReplacing() {
	for _, d := range w.replacing {
		if w.rng.Intn(2) == 0 {
			w.swap(d)
		}
	}
	w.replacing = nil
}

// settleOutside finds every dead pod, carries out all requests, and lets time pass.
func (w *world) settleOutside() {
	w.now = w.now.Add(2 * time.Second)
	for slot, a := range w.agents {
		if a.dead {
			w.level = slices.DeleteFunc(slices.Clone(w.level), func(d Termination) bool { return d.Pod == a.pod.UID })
			w.level = append(w.level, w.terminationOf(slot, true))
		}
	}
	if !w.state.Final() {
		w.deliverLevel()
	}
	if w.state.unreadable() != "" { // users repair what the gang waits for
		clear(w.torn)
		w.mended++
	}
	w.apply(Tick{})
	w.seek()
	for len(w.replacing) > 0 {
		w.carryOut()
	}
}

// muted cuts the connection of one or several agents for minutes; some of them report once in that time.
func (w *world) muted(slot int) {
	off := []int{slot}
	if w.rng.Intn(2) == 0 {
		off = w.rng.Perm(len(w.agents))[:1+w.rng.Intn(len(w.agents))]
	}
	began := w.now // answers of the API server are certain only from now on
	for range 7 + w.rng.Intn(20) {
		for _, slot := range off {
			w.apply(Detached{Slot: Slot(slot), Pod: w.agents[slot].pod.UID})
		}
		for range replacements.LookupStale / replacements.StuckGap { // all of it counts
			w.now = w.now.Add(replacements.StuckGap)
			w.apply(Tick{})
		}
		w.seek()
		slot := off[w.rng.Intn(len(off))]
		if a := w.agents[slot]; w.rng.Intn(15) == 0 && !a.dead {
			w.apply(Reported{Slot: Slot(slot), Pod: a.pod, Report: w.report(a)})
		}
	}
	for slot := range w.agents {
		at, known := w.heardAt[w.agents[slot].pod.UID]
		detected := time.Time{}
		if h := w.state.run.halting; h != nil {
			detected = h.detected
		}
		for _, later := range []time.Time{began, detected} {
			if later.After(at) {
				at = later
			}
		}
		if known && w.silent(slot) && !w.agents[slot].dead && w.now.Sub(at) > replacements.PartitionTime+2*replacements.LookupStale {
			w.failf("nobody is waited for without limit", "slot %d was not heard for %s", slot, w.now.Sub(at))
		}
	}
}

// noteStuck records the pods that were given up because they do not halt.
func (w *world) noteStuck() {
	for _, d := range w.state.rec().PendingReplacements {
		if d.Cause == replacements.HaltTimeout && !w.pendingOnce[d.Pod] {
			w.pendingOnce[d.Pod] = true
			w.stuck++
		}
	}
}

// silent reports whether a slot keeps the gang from halting and sends no reports.
func (w *world) silent(slot int) bool {
	m := w.state.members.At(Slot(slot))
	return w.state.Record.Phase == Halting && w.state.run.halting.watch.Awaited(Slot(slot), w.now) && !m.Attached()
}

// mostSilent reports whether the agents that keep the gang from halting, or were given up for that, are several and more than half.
func (w *world) mostSilent() bool {
	n := 0
	for slot := range w.agents {
		if d := w.state.replacements.For(Slot(slot)); w.silent(slot) || d != nil && d.Cause == replacements.AgentUnreachable {
			n++
		}
	}
	return n > 1 && 2*n > len(w.agents)
}

// seek answers queries for slot holders, and checks how long a given-up pod was silent.
func (w *world) seek() {
	for len(w.seeks) > 0 {
		slot := w.seeks[0]
		w.seeks = w.seeks[1:]
		before, most := len(w.state.rec().PendingReplacements), w.mostSilent()
		a := w.agents[slot]
		w.apply(SlotHolder{Slot: slot, Pod: a.pod, Runs: !a.dead})
		if len(w.state.rec().PendingReplacements) == before {
			continue
		}
		w.pendingOnce[a.pod.UID] = true
		w.silenced++
		need := replacements.UnreachableTime
		if most {
			w.deafened++
			need = replacements.PartitionTime
		}
		if at, known := w.heardAt[a.pod.UID]; known && w.now.Sub(at) < need {
			w.failf("who may be heard again is waited for", "slot %d was heard %s ago, most are silent: %v", slot, w.now.Sub(at), most)
		}
	}
}
