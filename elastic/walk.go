package elastic

import "time"

// What the reports of all pods mean together follows from a walk over all pods. A small gang walks after each report. Agents of a large one
// send thousands of reports in the time of a few walks, so a report waits for the next walk, which follows within walkEvery for each pod. A
// failure in the running generation does not wait. So the cost of a report does not depend on the number of pods.
//
// Each agent gets the text for which a gang waits. While pods arrive in the order of their slots, each walk has another text: a large gang
// changes it only after textEvery for each pod, or with the phase.
const (
	// walkAlways is the number of pods up to which a walk follows each report.
	walkAlways = 256
	// walkEvery is, for each pod, the least time from one walk to the next, textEvery that from one text to the next.
	walkEvery, textEvery = 4 * time.Microsecond, 200 * time.Microsecond
)

// walks is what a gang keeps of its walks.
type walks struct {
	// every is the least time from a walk to one that follows a report, texts that from one text to the next; 0: none.
	every, texts time.Duration
	// at is when the newest walk was; waits: a report waits for the next one.
	at    time.Time
	waits bool
	// news: a report was taken since the newest walk; seen: it may have changed what users see of pods. looks are slots that answered one.
	news, seen bool
	looks      []Slot
	// textAt is when the text last changed, textIn in which phase.
	textAt time.Time
	textIn Phase
}

func newWalks(pods int) walks {
	if pods <= walkAlways {
		return walks{}
	}
	return walks{every: time.Duration(pods) * walkEvery, texts: time.Duration(pods) * textEvery}
}

// walk acts on all pods.
func (s *State) walk(now time.Time) {
	w := &s.walks
	w.at, w.waits = now, false
	if w.news {
		s.track(now)
		for _, slot := range w.looks {
			s.noteLooks(slot, now)
		}
		if w.seen {
			s.refresh()
		}
		w.news, w.seen, w.looks = false, false, w.looks[:0]
	}
	s.advance(maxTransitions, now)
	s.wait(now)
	s.account.RecordLateCount(now)
}

// walkLater reports whether a report waits for a walk.
func (s *State) walkLater(now time.Time) bool {
	w := &s.walks
	due := w.at.Add(w.every)
	if w.every == 0 || !now.Before(due) {
		return false
	}
	if !w.waits {
		w.waits = true
		s.emit(Wake{due.Sub(now)})
	}
	return true
}

// takeText reports whether agents may get another text now, and counts it.
func (w *walks) takeText(in Phase, now time.Time) bool {
	if in == w.textIn && now.Before(w.textAt.Add(w.texts)) {
		return false
	}
	w.textAt, w.textIn = now, in
	return true
}
