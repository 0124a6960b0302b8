//go:build linux

package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// leastShare and mostShare bound the part of one processor that a pod spends on warming however busy the machine is.
	leastShare, mostShare = 0.2, 0.6
	// warmWithin is how soon all standbys of a pod are to be warm, warmEachWithin the same where each rank has a source of its own;
	// within that, the slower the better.
	warmWithin, warmEachWithin = 10 * time.Second, 50 * time.Second
	// warmCost is the processor time that a standby is taken to need before one has shown it.
	warmCost = 5 * time.Second
	// spareShare is the part of what is idle that warming uses on top, up to one processor in all.
	spareShare = 0.5
	// spareEvery is how often idleness is looked at: the kernel counts it in hundredths of a second.
	spareEvery = 200 * time.Millisecond
)

// guaranteed is the part of one processor that makes the missing sources warm in time: each takes cost, the one that is being
// warmed has used some of it, and the first one was begun some time ago. One that has used all of it needs more than was thought.
func guaranteed(within time.Duration, missing int, cost, used, ago time.Duration) float64 {
	need := time.Duration(missing-1)*cost + max(cost-used, cost/5)
	return min(max(float64(need)/float64(max(within-ago, within/10)), leastShare), mostShare)
}

// share says which part of one processor warming may use now: a guaranteed part, or half of what would be idle without it where that is
// more: the rest is left for the moments in which ranks that wait for one another all want to run.
type share struct {
	// idle is for how long all processors together have been idle; false: unknown, or this pod may not use them all.
	idle  func() (time.Duration, bool)
	part  float64
	at    time.Time
	idled time.Duration
	// spent is what warming itself used since then: without it that would have been idle, too.
	spent time.Duration
}

func newShare() share { return share{idle: idleTime, part: leastShare} }

// now takes what warming used since the last call, and what it is to have in any case.
func (s *share) now(now time.Time, spent time.Duration, least float64) float64 {
	s.spent += spent
	since := now.Sub(s.at)
	if since < spareEvery {
		return max(s.part, least)
	}
	idled, ok := s.idle()
	if !ok {
		s.part = least
		return s.part
	}
	if since < 10*spareEvery { // else nothing is known of the last moment
		free := float64(idled-s.idled+s.spent) / float64(since)
		s.part = min(spareShare*free, 1)
	}
	s.at, s.idled, s.spent = now, idled, 0
	return max(s.part, least)
}

// idleTime reads for how long the machine's processors have been idle. Where the container may use only so much of them, their
// idleness is none of its own.
func idleTime() (time.Duration, bool) {
	if cpuLimited() {
		return 0, false
	}
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	idle, err := parseIdle(string(data))
	return idle, err == nil
}

// parseIdle adds up idle and I/O wait of the first line of /proc/stat, which counts hundredths of a second.
func parseIdle(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return 0, fmt.Errorf("reading idle time: no sum of all processors in %q", line)
	}
	var ticks int64
	for _, f := range fields[4:6] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading idle time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// cpuLimited reports whether the container's control group has a CPU limit; unknown counts as one.
func cpuLimited() bool {
	if data, err := os.ReadFile("/sys/fs/cgroup/cpu.max"); err == nil {
		return !strings.HasPrefix(string(data), "max")
	}
	data, err := os.ReadFile("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
	return err != nil || !strings.HasPrefix(strings.TrimSpace(string(data)), "-")
}
