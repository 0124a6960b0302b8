package nodehealth

import (
	"slices"
	"time"
)

// heal takes away what has gone away by now and remembers that it was there.
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
		return // read again from the log it would go away at once; and a repair is no fault that comes again
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

// holdOff is how long the finding's check must pass: longer for what has gone away and come again.
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
		return now.Sub(f.last) >= s.holdOff(f) // there is no driver that could tell
	}
	newest, since := s.well(f, row.Exit)
	if since.IsZero() {
		return false
	}
	from := later(f.last, since)
	return newest.After(f.last) && newest.Sub(from) >= s.holdOff(f)
}

// well is since when, and until when, what the finding is about has been answering well; since is zero where
// it does not.
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
	case f.cause == SwitchError || f.device == "": // no device of NVML's: all of them must be well
		since = s.readSince
		for _, d := range s.devices {
			if d.goodSince.IsZero() {
				return s.read, time.Time{}
			}
			since = later(since, d.goodSince)
		}
		return s.read, since
	}
	return time.Time{}, time.Time{} // a device that NVML does not list: only a reboot tells
}
