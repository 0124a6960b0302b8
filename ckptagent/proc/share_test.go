//go:build linux

package proc

import (
	"math"
	"testing"
	"time"
)

func TestShareTakesWhatIsIdleAndNeverLessThanItsPart(t *testing.T) {
	for _, tc := range []struct {
		name string
		// idle and spent are per second, in processors.
		idle, spent, want float64
		unknown           bool
	}{
		{name: "all processors are busy", idle: 0, spent: 0.3, want: leastShare},
		{name: "half of one is idle", idle: 0.5, spent: 0.3, want: 0.4},
		{name: "two are idle: warming is one thread", idle: 2, spent: 0.3, want: 1},
		{name: "a CPU limit, or nothing known", idle: 2, spent: 0.3, want: leastShare, unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var idled time.Duration
			s := share{part: leastShare, idle: func() (time.Duration, bool) { return idled, !tc.unknown }}
			now, got := time.Unix(1000, 0), 0.0
			for range 100 {
				got = s.now(now, time.Duration(tc.spent*float64(10*time.Millisecond)), leastShare)
				now = now.Add(10 * time.Millisecond)
				idled += time.Duration(tc.idle * float64(10*time.Millisecond))
			}
			if math.Abs(got-tc.want) > 0.02 {
				t.Fatalf("share = %.2f, want %.2f", got, tc.want)
			}
		})
	}
}

// TestGuaranteedIsEnough: whatever a standby costs, up to what mostShare allows, all standbys are warm in time on a busy machine.
func TestGuaranteedIsEnough(t *testing.T) {
	const step = 100 * time.Millisecond
	for _, cost := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 7 * time.Second} {
		var ago time.Duration
		known := warmCost
		for missing := 4; missing > 0; missing-- {
			for used := time.Duration(0); used < cost; ago += step {
				part := guaranteed(warmEachWithin, missing, known, used, ago)
				if part < leastShare || part > mostShare {
					t.Fatalf("a share of %.2f", part)
				}
				used += time.Duration(part * float64(step))
			}
			known = cost
		}
		if ago > time.Minute {
			t.Errorf("4 standbys that cost %s each were warm after %s", cost, ago)
		}
	}
	for _, cost := range []time.Duration{time.Second, 5 * time.Second, 8 * time.Second} {
		var used, ago time.Duration
		for ; used < cost; ago += step {
			used += time.Duration(guaranteed(warmWithin, 1, warmCost, used, ago) * float64(step))
		}
		if ago > 20*time.Second {
			t.Errorf("a source that costs %s was warm after %s", cost, ago)
		}
	}
	if got := guaranteed(warmEachWithin, 4, time.Second, 0, 0); got != leastShare {
		t.Errorf("cheap standbys get %.2f, more than they need", got)
	}
}

func TestShareForgetsAfterRest(t *testing.T) {
	idled := time.Duration(0)
	s := share{part: leastShare, idle: func() (time.Duration, bool) { return idled, true }}
	s.now(time.Unix(1000, 0), 0, leastShare)
	idled = time.Hour // while nothing was warmed
	if got := s.now(time.Unix(2000, 0), 0, leastShare); got != leastShare {
		t.Fatalf("share = %.2f at once after a rest; nothing is known of the last moment", got)
	}
}

func TestParseIdle(t *testing.T) {
	got, err := parseIdle("cpu  100 1 50 4000 25 0 3 0 0 0\ncpu0 1 2 3 4 5\n")
	if err != nil || got != 40250*time.Millisecond {
		t.Fatalf("parseIdle = %v, %v", got, err)
	}
	for _, bad := range []string{"", "intr 1 2 3 4 5 6", "cpu 1 2 3 x 5 6"} {
		if _, err := parseIdle(bad); err == nil {
			t.Errorf("parseIdle(%q) found no fault", bad)
		}
	}
}
