// Package quiet decides when a gang counts as quiet, and when agents look at its ranks. A gang is quiet when no step has finished for
// longer than a limit. The limit is computed from the times between the gang's own steps: it is at least twice the 99th percentile of these
// times. The numbers of looks only rise. A coordinator that succeeds another one resumes a silence that is known, as Judged with
// no look taken. Time is an argument; the package has no clock.
//
//	            quiet             answered, or late        answered, or late        answered, or late
//	Moving ─────────────► Looking 1 ─────────────► Looking 2 ─────────────► Looking 3 ─────────────► Judged
//	   ▲                                                                       ▲                        │
//	   └── a step, from every state                                            └── after Again ─────────┘
package quiet

import "time"

const (
	// least and most bound the limit that gapFactor × p99 of the gaps gives, unless twice that gap is longer; beforeFirst is the limit
	// before the first step of a generation, while gaps are not known.
	least, most = 15 * time.Second, 45 * time.Second
	gapFactor   = 5
	gapLeast    = 2
	beforeFirst = time.Minute
	// Every is the time from one look to the next; Again is that time once a verdict was reached.
	Every = 5 * time.Second
	Again = 30 * time.Second
	// late is how long answers are awaited: agents answer within two seconds, and report each second.
	late = 10 * time.Second
	// Looks is how many successive looks make a verdict.
	Looks = 3
)

// State is what is done about the silence of a gang.
type State int

const (
	// Moving: steps come in time.
	Moving State = iota
	// Looking: a look was requested, and its answers are awaited; or the next one is not due yet.
	Looking
	// Judged: three looks were made. A further one follows after Again, and a verdict on the newest three.
	Judged
)

func (s State) String() string { return [...]string{"Moving", "Looking", "Judged"}[s] }

// Watch watches one gang.
type Watch struct {
	gaps  gaps
	state State
	// since is when the newest sign of life was seen; zero: never. stepped: the generation has made a step.
	since   time.Time
	stepped bool
	// blind is since when reports of some agent are missing; zero: none are. unseen is how much of the silence passed like that before.
	blind  time.Time
	unseen time.Duration
	// number is the newest look that was requested, at is when; taken counts those of this silence; answered: its answers are in.
	number   int64
	at       time.Time
	taken    int
	answered bool
	// longest is the longest silence after the first step of a generation that ended by itself.
	longest time.Duration
}

// New returns a watch to which the longest silence of earlier coordinators is known.
func New(longest time.Duration) Watch { return Watch{longest: longest} }

// State returns the present state.
func (w *Watch) State() State { return w.state }

// Since returns the time of the newest sign of life; zero: there was none yet.
func (w *Watch) Since() time.Time { return w.since }

// Seen returns how much of the silence passed while the reports of all agents came.
func (w *Watch) Seen(now time.Time) time.Duration {
	seen := now.Sub(w.since) - w.unseen
	if !w.blind.IsZero() {
		seen -= now.Sub(later(w.blind, w.since))
	}
	return max(0, seen)
}

// NoteSight records whether the reports of all agents come now. It reports whether that is so again.
func (w *Watch) NoteSight(all bool, now time.Time) (again bool) {
	switch again = all && !w.blind.IsZero(); {
	case again:
		w.unseen += now.Sub(later(w.blind, w.since))
		w.blind = time.Time{}
	case !all && w.blind.IsZero():
		w.blind = now
	}
	return again
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Longest returns the longest silence after which the gang moved on by itself, without those before the first step of a generation.
func (w *Watch) Longest() time.Duration { return w.longest }

// Wanted returns the number of the look that agents must answer; 0: none.
func (w *Watch) Wanted() int64 {
	if w.state == Moving {
		return 0
	}
	return w.number
}

// Limit returns after how long without a sign of life the gang is quiet.
func (w *Watch) Limit() time.Duration {
	p99, known := w.gaps.p99()
	if !w.stepped || !known {
		return max(beforeFirst, gapLeast*p99)
	}
	return max(min(max(least, gapFactor*p99), most), gapLeast*p99)
}

// Begin begins to watch another generation: its first step may take long. The gaps of earlier ones stay known.
func (w *Watch) Begin(now time.Time) {
	w.state, w.since, w.stepped, w.taken, w.unseen = Moving, now, false, 0, 0
}

// BeginLaunch begins to watch another launcher, whose script has other gaps.
func (w *Watch) BeginLaunch(now time.Time) {
	w.gaps, w.longest = gaps{}, 0
	w.Begin(now)
}

// Resume continues a silence that another coordinator has watched: looks are due, and a verdict needs as many as for a new silence.
// stepped: the generation has made a step. seen is how much of it that coordinator saw: what follows counts from the next reports on.
func (w *Watch) Resume(since time.Time, seen time.Duration, stepped bool) {
	w.state, w.since, w.stepped, w.taken, w.unseen, w.blind = Judged, since, stepped, 0, 0, since.Add(seen)
}

// NoteStep records that steps were made. It reports whether looks are no longer wanted.
func (w *Watch) NoteStep(now time.Time) (ended bool) {
	if gap := now.Sub(w.since); w.stepped && gap > 0 {
		w.gaps.add(gap)
	}
	ended = w.NoteLife(now)
	w.stepped = true
	return ended
}

// NoteLife records another sign of life, such as a phase of a rank's start. It reports whether looks are no longer wanted.
func (w *Watch) NoteLife(now time.Time) (ended bool) {
	if w.state != Moving && w.stepped {
		w.longest = max(w.longest, w.Seen(now))
	}
	return w.NoteInterrupt(now)
}

// NoteInterrupt records that the silence ended, and not by itself. It reports whether looks are no longer wanted.
func (w *Watch) NoteInterrupt(now time.Time) (ended bool) {
	ended = w.state != Moving
	w.state, w.since, w.taken, w.unseen = Moving, now, 0, 0
	return ended
}

// NoteAnswers records that all answers to the present look are in.
func (w *Watch) NoteAnswers() { w.answered = true }

// Outcome is what Advance wants of its caller.
type Outcome int

const (
	// Nothing is to be done.
	Nothing Outcome = iota
	// Look: a new look is wanted (Wanted).
	Look
	// Judge: the newest looks make a verdict.
	Judge
)

// Advance moves on with time. newest is the highest number of a look that any agent is known to have answered: a number is never used
// again, also not by a coordinator that succeeds another one.
func (w *Watch) Advance(newest int64, now time.Time) Outcome {
	waited := now.Sub(w.at)
	switch w.state {
	case Moving:
		if w.since.IsZero() || now.Sub(w.since) < w.Limit() {
			return Nothing
		}
	case Looking:
		switch {
		case !w.answered && waited < late:
			return Nothing
		case w.taken >= Looks:
			w.state = Judged
			return Judge
		case waited < Every:
			return Nothing
		}
	case Judged:
		if waited < Again {
			return Nothing
		}
	}
	w.number = max(w.number+1, newest+1, now.Unix())
	w.state, w.at, w.answered = Looking, now, false
	w.taken = min(w.taken+1, Looks)
	return Look
}
