package members

import (
	"math"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// savesTold handles reports of a gang of one pod, and adds up its saves.
type savesTold struct {
	ms       *Members
	now      time.Time
	sequence uint64
	reported protocol.Saves
}

func newSavesTold() *savesTold {
	return &savesTold{ms: New(1, Recorded{}, true), now: time.Unix(1_700_000_000, 0)}
}

func (w *savesTold) say(after time.Duration, pod string, generation int64, saves ...*protocol.Saves) {
	w.now, w.sequence = w.now.Add(after), w.sequence+1
	r := protocol.Report{
		Incarnation: 1,
		Sequence:    w.sequence,
		Ranks:       len(saves),
		Generation:  generation,
		State:       protocol.StateRunning,
	}
	for i, c := range saves {
		r.Rank = append(r.Rank, protocol.Rank{Local: i, Saves: c})
	}
	p := Pod{UID: pod, Name: pod, Created: w.now}
	if w.ms.Admit(0, p, &r, noneFenced) < Admitted {
		return
	}
	_, more := w.ms.Take(0, p, &r, 1, w.now)
	w.reported.Copied += more.Copied
	w.reported.Overlapped += more.Overlapped
	w.reported.Dropped += more.Dropped
	w.reported.Skipped, w.reported.Refused = w.reported.Skipped+more.Skipped, w.reported.Refused+more.Refused
}

// TestSavesAreCountedOnce: each process counts its saves from 0, and a report may lack the counts. Saves before the first report to this
// coordinator do not count.
func TestSavesAreCountedOnce(t *testing.T) {
	of := func(copied, overlapped, dropped, skipped, refused uint32) *protocol.Saves {
		return &protocol.Saves{Copied: copied, Overlapped: overlapped, Dropped: dropped, Skipped: skipped, Refused: refused}
	}
	type report struct {
		pod        string
		generation int64
		saves      []*protocol.Saves
	}
	say := func(pod string, generation int64, saves ...*protocol.Saves) report {
		return report{pod, generation, saves}
	}
	for name, tt := range map[string]struct {
		reports []report
		want    protocol.Saves
	}{
		"an old agent":                               {[]report{say("a", 1, nil), say("a", 2, nil), say("a", 2, nil)}, protocol.Saves{}},
		"from the pod's begin":                       {[]report{say("a", 0), say("a", 1, nil), say("a", 1, of(3, 2, 1, 4, 5)), say("a", 1, of(4, 2, 1, 4, 5))}, *of(4, 2, 1, 4, 5)},
		"ranks that come later":                      {[]report{say("a", 0), say("a", 1), say("a", 1, of(3, 0, 0, 0, 0), of(2, 0, 0, 0, 0))}, *of(5, 0, 0, 0, 0)},
		"of two ranks":                               {[]report{say("a", 0), say("a", 1, of(3, 1, 0, 0, 0), of(2, 2, 1, 1, 1)), say("a", 1, of(3, 1, 0, 0, 0), of(3, 3, 1, 1, 1))}, *of(6, 4, 1, 1, 1)},
		"another coordinator's":                      {[]report{say("a", 1, of(100, 0, 9, 0, 0)), say("a", 1, of(102, 0, 9, 1, 0))}, *of(2, 0, 0, 1, 0)},
		"in the next generation":                     {[]report{say("a", 1, of(100, 0, 0, 0, 0)), say("a", 2, of(100, 0, 0, 0, 0)), say("a", 2, of(101, 0, 0, 0, 0))}, *of(101, 0, 0, 0, 0)},
		"of another process":                         {[]report{say("a", 0), say("a", 1, of(5, 0, 2, 0, 0)), say("a", 1, of(0, 0, 0, 0, 0)), say("a", 1, of(6, 0, 0, 0, 0))}, *of(11, 0, 2, 0, 0)},
		"of another that is further on in one count": {[]report{say("a", 0), say("a", 1, of(5, 0, 2, 0, 0)), say("a", 1, of(6, 0, 0, 0, 0))}, *of(11, 0, 2, 0, 0)},
		"an agent that restarted":                    {[]report{say("a", 0), say("a", 1, of(5, 0, 0, 0, 0)), say("a", 1, nil), say("a", 1, of(7, 0, 0, 0, 0))}, *of(7, 0, 0, 0, 0)},
		"another pod":                                {[]report{say("a", 0), say("a", 1, of(5, 0, 0, 0, 0)), say("b", 1, of(100, 0, 0, 0, 0)), say("b", 1, of(101, 0, 0, 0, 0))}, *of(6, 0, 0, 0, 0)},
	} {
		w := newSavesTold()
		for _, r := range tt.reports {
			w.say(time.Second, r.pod, r.generation, r.saves...)
		}
		if w.reported != tt.want {
			t.Errorf("%s: counted are %+v, want %+v", name, w.reported, tt.want)
		}
	}
}

// TestNoReportMakesManySaves: at most savesPerSecond saves of a rank count, whatever an agent reports and however often.
func TestNoReportMakesManySaves(t *testing.T) {
	const seconds, reports = 10, 200 // the number of reports that may be sent in each second
	most := &protocol.Saves{
		Copied:     math.MaxUint32,
		Overlapped: math.MaxUint32,
		Dropped:    math.MaxUint32,
		Skipped:    math.MaxUint32,
		Refused:    math.MaxUint32,
	}
	for name, next := range map[string]func(i int) (generation int64, saves *protocol.Saves){
		"all at once":           func(int) (int64, *protocol.Saves) { return 1, most },
		"generations":           func(i int) (int64, *protocol.Saves) { return int64(i), most },
		"processes":             func(i int) (int64, *protocol.Saves) { return 1, []*protocol.Saves{most, {}}[i%2] },
		"from generation to it": func(i int) (int64, *protocol.Saves) { return int64(i % 2), most },
	} {
		w := newSavesTold()
		w.say(0, "a", 0)
		for i := range seconds * reports {
			generation, saves := next(i)
			w.say(time.Second/reports, "a", generation, saves)
		}
		const allowed = (seconds + 60) * savesPerSecond
		r := w.reported
		if got := []uint32{r.Copied, r.Overlapped, r.Dropped, r.Skipped, r.Refused}; slices.Max(got) > allowed || slices.Min(got) == 0 {
			t.Errorf("%s: counted are %d, want %d at most", name, got, allowed)
		}
	}
}
