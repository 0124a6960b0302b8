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
	// leastShare and mostShare bound the part of one processor that a pod uses for warming on a busy machine.
	leastShare, mostShare = 0.2, 0.6
	// warmWithin is when all standbys of a pod should be warm, warmEachWithin the same if each rank has its own source; within that time,
	// warming uses as little as possible.
	warmWithin, warmEachWithin = 10 * time.Second, 50 * time.Second
	// warmCost is the assumed CPU time of a source before one was measured.
	warmCost = 5 * time.Second
	// spareShare is the part of the idle CPU time that warming may use, up to one processor in all.
	spareShare = 0.5
	// spareEvery is how often idle time is read: the kernel counts it in hundredths of a second.
	spareEvery = 200 * time.Millisecond
)

// guaranteed returns the part of one processor that warms the missing sources in time: each costs cost, the present one has used some of
// it, and the first was started some time ago. If the present one has used all of cost, it needs more than was assumed.
func guaranteed(within time.Duration, missing int, cost, used, ago time.Duration) float64 {
	need := time.Duration(missing-1)*cost + max(cost-used, cost/5)
	return min(max(float64(need)/float64(max(within-ago, within/10)), leastShare), mostShare)
}

// share computes the part of one processor that warming may use now: the guaranteed part or, if more, half of the CPU time that would be
// idle without warming. The rest is for moments in which all ranks of a collective want to run.
type share struct {
	// idle returns the idle time of all processors together; false: unknown, or this pod may not use all of them.
	idle  func() (time.Duration, bool)
	part  float64
	at    time.Time
	idled time.Duration
	// spent is the CPU time of warming since then: without warming it would have been idle, too.
	spent time.Duration
}

func newShare() share { return share{idle: idleTime, part: leastShare} }

// now receives the CPU time of warming since the last call and the guaranteed part, and returns the part to use.
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
	if since < 10*spareEvery { // else the measurement is too old
		free := float64(idled-s.idled+s.spent) / float64(since)
		s.part = min(spareShare*free, 1)
	}
	s.at, s.idled, s.spent = now, idled, 0
	return max(s.part, least)
}

// idleTime returns the idle time of the machine's processors. It is unknown if the container has a CPU limit: then idle time is not its
// own.
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

// parseIdle adds idle time and I/O wait in the first line of /proc/stat, in hundredths of a second.
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
