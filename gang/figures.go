package gang

import (
	"fmt"
	"time"
)

// Goodput is the share of the time since the first start that was spent on steps that were kept, such as
// "98.6%"; empty where nothing has started.
func Goodput(started, until time.Time, lost time.Duration) string {
	share, ok := GoodputShare(started, until, lost)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.1f%%", 100*share)
}

// GoodputShare is the same as a number from 0 to 1; ok is false where no time has passed.
func GoodputShare(started, until time.Time, lost time.Duration) (share float64, ok bool) {
	total := until.Sub(started)
	if started.IsZero() || total <= 0 {
		return 0, false
	}
	return max(0, min(1, 1-float64(lost)/float64(total))), true
}

// Age writes how long ago something was in one unit, such as "9s"; empty where it never was.
func Age(at, now time.Time) string {
	d := now.Sub(at)
	switch {
	case at.IsZero():
		return ""
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
