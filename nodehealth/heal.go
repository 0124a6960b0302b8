package nodehealth

import (
	"slices"
	"time"
)

// heal removes findings that have ended and records that they were there.
func (s *State) heal(now time.Time) {
	for i := len(s.findings) - 1; i >= 0; i-- {
		if s.gone(s.findings[i], now) {
			s.remove(i, now)
		}
	}
	s.returns = slices.DeleteFunc(s.returns, func(r recurrence) bool { return now.Sub(r.healed) > RepeatWithin })
}

func (s *State) remove(i int, now time.Time) {
	f := s.findings[i]
	s.findings = slices.Delete(s.findings, i, i+1)
	if Catalogue[rank(f.cause)].Exit == ExitQuiet || f.cause == GPUsReleased {
		return // a restart reads the log again and ends it at once; a repair is no fault that recurs
	}
	s.settled = max(s.settled, f.seq)
	for j := range s.returns {
		if r := &s.returns[j]; r.cause == f.cause && r.device == f.device {
			r.healed, r.times = now, r.times+1
			return
		}
	}
	if len(s.returns) == maxReturns {
		s.returns = slices.Delete(s.returns, 0, 1)
	}
	s.returns = append(s.returns, recurrence{cause: f.cause, device: f.device, healed: now, times: 1})
}

// holdOff returns how long the finding's check must pass: longer after recurrences.
func (s *State) holdOff(f finding) time.Duration {
	hold := HoldOff
	if d := s.device(f.device); Catalogue[rank(f.cause)].Exit == ExitReads && (d == nil || !d.speaks && Catalogue[rank(f.cause)].Confirm) {
		hold = HoldOffBlind
	}
	for _, r := range s.returns {
		if r.cause == f.cause && r.device == f.device {
			for range min(r.times, 10) {
				hold *= 2
			}
		}
	}
	return min(hold, HoldOffMax)
}

// gone reports whether the finding's exit has been reached.
func (s *State) gone(f finding, now time.Time) bool {
	row := Catalogue[rank(f.cause)]
	if row.Exit == ExitQuiet {
		quiet := QuietFor
		if row.Repeat > 0 {
			quiet = RepeatWithin
		}
		return now.Sub(f.last) > quiet
	}
	if row.Exit == ExitReads && s.blind != "" && s.unread() && !slices.Contains(saidByDriver, f.cause) {
		return now.Sub(f.last) >= s.holdOff(f) // no driver can report anything
	}
	newest, since := s.well(f, row.Exit)
	if since.IsZero() {
		return false
	}
	from := later(f.last, since)
	return newest.After(f.last) && newest.Sub(from) >= s.holdOff(f)
}

// well returns since when, and until when, the finding's device has answered well; since is zero if it does not.
func (s *State) well(f finding, exit Exit) (newest, since time.Time) {
	if !s.hungSince.IsZero() || s.blind != "" || s.released != "" {
		return time.Time{}, time.Time{}
	}
	d := s.device(f.device)
	switch {
	case exit == ExitCleared:
		return s.read, s.readSince
	case d != nil:
		return d.read, d.goodSince
	case f.cause == SwitchError || f.device == "": // no device of NVML: all devices must be well
		since = s.readSince
		for _, d := range s.devices {
			if d.goodSince.IsZero() {
				return s.read, time.Time{}
			}
			since = later(since, d.goodSince)
		}
		return s.read, since
	}
	return time.Time{}, time.Time{} // NVML does not list the device, so only a reboot ends it
}
