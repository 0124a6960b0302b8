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
		{name: "all processors are busy", idle: 0, spent: 0.3, want: warmShare},
		{name: "half of one is idle", idle: 0.5, spent: 0.3, want: 0.4},
		{name: "two are idle: warming is one thread", idle: 2, spent: 0.3, want: 1},
		{name: "a CPU limit, or nothing known", idle: 2, spent: 0.3, want: warmShare, unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var idled time.Duration
			s := share{part: warmShare, idle: func() (time.Duration, bool) { return idled, !tc.unknown }}
			now, got := time.Unix(1000, 0), 0.0
			for range 100 {
				got = s.now(now, time.Duration(tc.spent*float64(10*time.Millisecond)))
				now = now.Add(10 * time.Millisecond)
				idled += time.Duration(tc.idle * float64(10*time.Millisecond))
			}
			if math.Abs(got-tc.want) > 0.02 {
				t.Fatalf("share = %.2f, want %.2f", got, tc.want)
			}
		})
	}
}

func TestShareForgetsAfterRest(t *testing.T) {
	idled := time.Duration(0)
	s := share{part: warmShare, idle: func() (time.Duration, bool) { return idled, true }}
	s.now(time.Unix(1000, 0), 0)
	idled = time.Hour // while nothing was warmed
	if got := s.now(time.Unix(2000, 0), 0); got != warmShare {
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
