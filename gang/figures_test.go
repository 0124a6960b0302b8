package gang

import (
	"testing"
	"time"
)

func TestGoodput(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name    string
		started time.Time
		until   time.Time
		lost    time.Duration
		want    string
	}{
		{"not started", time.Time{}, start, 0, ""},
		{"just now", start, start, 0, ""},
		{"nothing lost", start, start.Add(time.Hour), 0, "100.0%"},
		{"a little lost", start, start.Add(1000 * time.Second), 14 * time.Second, "98.6%"},
		{"more lost than there was", start, start.Add(time.Second), time.Minute, "0.0%"},
	} {
		if got := Goodput(c.started, c.until, c.lost); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		-time.Second: "0s", 9 * time.Second: "9s", 119 * time.Second: "119s", 3 * time.Minute: "3m", 5 * time.Hour: "5h", 72 * time.Hour: "3d",
	} {
		if got := Age(now.Add(-ago), now); got != want {
			t.Errorf("%s ago: got %q, want %q", ago, got, want)
		}
	}
	if got := Age(time.Time{}, now); got != "" {
		t.Errorf("never: got %q", got)
	}
}
