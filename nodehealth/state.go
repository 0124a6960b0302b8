package nodehealth

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// maxFindings, maxDevices and maxReturns bound a State whatever signals come.
	maxFindings = 64
	maxDevices  = 64
	maxReturns  = 64
	// maxText bounds the stored text of a signal, in bytes.
	maxText = 240
	// maxGap: after that long without a reading, a device counts as just found.
	maxGap = 10 * time.Second
	// freshFor: Fold waits for the driver of a device that was read that recently.
	freshFor = 5 * time.Second
	// sameAs: signs of one cause that close together count once.
	sameAs = time.Second
)

// State is the accumulated state of one node under one boot. It is a value: Fold does not change its argument.
type State struct {
	boot     string
	findings []finding
	devices  []device
	returns  []recurrence
	// settled: the kernel log records up to this number were handled.
	settled uint64
	// read is when NVML last answered, readSince since when it has answered without interruption; hungSince is zero unless it hangs.
	read, readSince, hungSince time.Time
	// blind is why nothing can be queried; empty: NVML can be, or was not queried yet.
	blind string
	// released is the annotation or label for which NVML is not queried now; empty: it is queried.
	released string
	// gpus is how many GPUs the node should have, 0: unknown. It is the most that labels showed or NVML listed, under this boot or an
	// earlier one, because after a boot a missing GPU appears in neither. declared: a user set it.
	gpus     int
	gpusBy   string
	declared bool
}

// finding is one cause on one device: at most one each.
type finding struct {
	cause       Cause
	device      string
	source      Source
	text        string
	first, last time.Time
	count       int
	seq         uint64
	// confirmed: the action no longer waits for the driver or the grace. restored: an earlier process found it, and its time stays.
	confirmed, restored bool
	// past: it was read from the log long after it happened; only the driver can confirm that it persists.
	past bool
}

// device is NVML's last reading. goodSince is zero while it is bad.
type device struct {
	id, pci         string
	read, goodSince time.Time
	speaks          bool
	// links is the most that were ever active under this boot.
	links int
}

// recurrence records how often a cause ended and returned.
type recurrence struct {
	cause  Cause
	device string
	healed time.Time
	times  int
}

// New returns the state of a node without observations.
func New(boot string) State { return State{boot: boot} }

// Restore continues from an earlier process's verdict. Under another boot only the number of GPUs is still valid.
func Restore(boot string, v Verdict) State {
	s := New(boot)
	s.gpus, s.gpusBy = v.Seen.GPUs, "as many were there before"
	if v.Boot != boot {
		return s
	}
	s.settled = v.Settled
	for _, id := range slices.Sorted(maps.Keys(v.Seen.Links)) {
		s.devices = append(s.devices, device{id: id, links: v.Seen.Links[id]})
	}
	s.devices = s.devices[:min(len(s.devices), maxDevices)]
	for _, e := range v.Evidence {
		at := rank(e.Cause)
		if at < 0 {
			continue
		}
		// Evidence that ranks before the verdict's cause was not confirmed; otherwise it would be the cause.
		s.findings = append(s.findings, finding{cause: e.Cause, device: e.Device, source: e.Source, text: e.Text, first: e.At, last: e.At,
			count: max(1, Catalogue[at].Repeat), confirmed: v.Action == Evict && at >= rank(v.Cause), restored: true})
	}
	return s
}

// Fold returns the state after one signal. now is the present time; a signal may be older.
func Fold(s State, sig Signal, now time.Time) State {
	if sig.Seq != 0 && sig.Seq <= s.settled {
		return s
	}
	s.findings, s.devices, s.returns = slices.Clone(s.findings), slices.Clone(s.devices), slices.Clone(s.returns)
	sig.Device = s.known(sig.Device)
	switch sig.Kind {
	case Xid:
		s.event(ofXid(sig.Code), sig, now)
	case SXid:
		s.event(ofSXid(sig.Code, sig.Fatal), sig, now)
	case OffBus:
		s.event(OffTheBus, sig, now)
	case RecoveryChanged:
		s.recovery(sig, now)
	case Read:
		s.heal(now) // an ended cause does not return because this round cannot check it
		s.round(sig)
	case Hang:
		s.hang(sig)
	case Blind:
		s.lose(sig)
	case Released:
		s.release(sig)
	case Expected:
		s.expect(sig)
	case Tick:
	}
	s.heal(now)
	return s
}

// known returns the UUID of a device by its PCI address, if NVML has listed it.
func (s *State) known(id string) string {
	for _, d := range s.devices {
		if d.pci == id && id != "" {
			return d.id
		}
	}
	return id
}

func (s *State) device(id string) *device {
	for i := range s.devices {
		if s.devices[i].id == id {
			return &s.devices[i]
		}
	}
	return nil
}

// event handles a single event. If the row requires the driver's confirmation and the driver can be read, the action waits for it.
func (s *State) event(c Cause, sig Signal, now time.Time) {
	f := s.touch(c, sig)
	f.past = !f.confirmed && now.Sub(f.last) > HoldOffBlind
	d := s.device(sig.Device)
	asked := d != nil && d.speaks && s.hungSince.IsZero() && sig.At.Sub(d.read) < freshFor
	unasked := s.read.IsZero() && s.blind == "" || s.unread() || s.released != ""
	f.confirmed = f.confirmed || !f.past && (!Catalogue[rank(c)].Confirm || !asked && !unasked)
}

// unread reports whether no driver was ever read under this boot, so that errors cannot be checked.
func (s *State) unread() bool { return s.read.IsZero() && len(s.devices) == 0 }

// stopWaiting confirms findings that wait for a driver that does not answer. A driver that was never read is not waited for, and confirms
// nothing.
func (s *State) stopWaiting() {
	if s.unread() {
		return
	}
	for i := range s.findings {
		f := &s.findings[i]
		if d := s.device(f.device); Catalogue[rank(f.cause)].Confirm && !f.past && (d == nil || !d.speaks || s.blind != "") {
			f.confirmed = true
		}
	}
}

// touch returns the finding, creates it if needed, and records that it was seen.
func (s *State) touch(c Cause, sig Signal) *finding {
	text := sig.Text
	if len(text) > maxText {
		text = text[:maxText]
	}
	for i := range s.findings {
		f := &s.findings[i]
		if f.cause != c || f.device != sig.Device {
			continue
		}
		if sig.At.Sub(f.last) > sameAs {
			f.count++
		}
		if !f.restored {
			f.first = earlier(f.first, sig.At)
		}
		f.last, f.seq = later(f.last, sig.At), max(f.seq, sig.Seq)
		return f
	}
	if len(s.findings) == maxFindings {
		s.dropWeakest()
	}
	s.findings = append(
		s.findings,
		finding{cause: c, device: sig.Device, source: sig.Source, text: text, first: sig.At, last: sig.At, count: 1, seq: sig.Seq},
	)
	return &s.findings[len(s.findings)-1]
}

// dropWeakest drops the finding with the least action, of these the one of the last row.
func (s *State) dropWeakest() {
	at := 0
	for i, f := range s.findings {
		w := s.findings[at]
		if a, b := f.action(), w.action(); a < b || a == b && rank(f.cause) > rank(w.cause) {
			at = i
		}
	}
	s.findings = slices.Delete(s.findings, at, at+1)
}

// recovery handles the driver's recovery action in the kernel log. For a device that NVML reads, NVML reports the same earlier.
func (s *State) recovery(sig Signal, now time.Time) {
	if sig.Code != RecoveryNone {
		f := s.touch(ofRecovery(sig.Code), sig)
		if f.past = !f.confirmed && now.Sub(f.last) > HoldOffBlind; !f.past {
			s.confirm(sig.Device)
		}
		return
	}
	if s.device(sig.Device) != nil {
		return
	}
	for i := len(s.findings) - 1; i >= 0; i-- {
		if f := s.findings[i]; f.device == sig.Device && Catalogue[rank(f.cause)].Exit == ExitReads && !sig.At.Before(f.last) {
			s.remove(i, sig.At)
		}
	}
}

func (s *State) confirm(device string) {
	for i := range s.findings {
		if s.findings[i].device == device {
			s.findings[i].confirmed = true
		}
	}
}

// round handles the readings of all devices that NVML lists. A device that it listed before and does not list now is lost.
func (s *State) round(sig Signal) {
	if s.readSince.IsZero() || !s.hungSince.IsZero() || s.blind != "" || s.released != "" || sig.At.Sub(s.read) > maxGap {
		s.readSince = sig.At
	}
	s.read, s.hungSince, s.blind, s.released = sig.At, time.Time{}, "", ""
	listed := map[string]bool{}
	for _, r := range sig.Readings {
		listed[r.Device] = true
		s.reading(r, sig.At)
	}
	for i := range s.devices {
		if d := &s.devices[i]; !listed[d.id] {
			d.goodSince = time.Time{}
			s.sign(GPULost, d.id, sig.At, "NVML does not list the device any more")
			s.confirm(d.id)
		}
	}
	switch n := len(sig.Readings); {
	case n < s.gpus:
		s.sign(GPUMissing, "", sig.At, fmt.Sprintf("GPUs that NVML lists: %d, that the node should have: %d (%s)", n, s.gpus, s.gpusBy))
	case !s.declared && n > s.gpus:
		s.gpus, s.gpusBy = n, "as many were listed before"
	}
	s.links(sig)
	s.stopWaiting()
}

// expect sets how many GPUs the node should have. A user's number holds until the user changes it; a label below what was seen does not
// count a missing GPU.
func (s *State) expect(sig Signal) {
	if s.declared = sig.Final; sig.Final || sig.Code > s.gpus {
		s.gpus, s.gpusBy = sig.Code, sig.Text
	}
}

func (s *State) reading(r Reading, at time.Time) {
	s.note(r, at)
	if r.Lost {
		s.sign(GPULost, r.Device, at, "NVML reports that the GPU is lost")
	}
	if r.ResetRequired {
		s.sign(GPUNeedsReset, r.Device, at, "NVML reports that the GPU must be reset")
	}
	if r.Recovery > RecoveryNone {
		s.sign(ofRecovery(r.Recovery), r.Device, at, recoveryText(r.Recovery))
	}
	if r.RemapPending {
		s.sign(RowRemapPending, r.Device, at, "NVML reports that a row remapping is pending")
	}
	if r.RemapFailed {
		s.sign(RowRemapFailed, r.Device, at, "NVML reports that a row remapping has failed")
	}
	if r.Uncorrected > 0 {
		s.sign(UncorrectableECC, r.Device, at, fmt.Sprintf("NVML counts %d memory errors that could not be corrected", r.Uncorrected))
	}
	if r.Width > 0 && r.Width < r.MaxWidth || r.Speed > 0 && r.Speed < r.MaxSpeed {
		s.sign(PCIeDegraded, r.Device, at, fmt.Sprintf("NVML reports PCIe generation %d of %d with %d of %d lanes", r.Speed, r.MaxSpeed, r.Width, r.MaxWidth))
	}
	if r.bad() {
		s.confirm(r.Device)
	}
}

// links compares the active links with the earlier number, and with most other GPUs of the node: NVML does not report how many are wired.
func (s *State) links(sig Signal) {
	have := map[int]int{}
	for _, r := range sig.Readings {
		if !r.Lost && !r.LinksUnknown {
			have[r.LinksUp]++
		}
	}
	usual := 0
	for links, gpus := range have {
		if 2*gpus > len(sig.Readings) {
			usual = links
		}
	}
	for _, r := range sig.Readings {
		d := s.device(r.Device)
		if d == nil || r.Lost {
			continue
		}
		if r.LinksUnknown { // links that were down stay so until they can be counted again
			s.retain(NVLinkDown, r.Device, sig.At)
			continue
		}
		if r.LinksUp+r.LinksDown == 0 {
			continue
		}
		switch d.links = max(d.links, r.LinksUp); {
		case r.LinksUp < d.links:
			s.sign(NVLinkDown, r.Device, sig.At, fmt.Sprintf("%d NVLinks are active, %d were", r.LinksUp, d.links))
		case r.LinksUp < usual:
			s.sign(NVLinkDown, r.Device, sig.At, fmt.Sprintf("%d NVLinks are active, most GPUs of the node have %d", r.LinksUp, usual))
		}
	}
}

// note stores what a reading shows of the device as a whole, and merges what is stored under its address.
func (s *State) note(r Reading, at time.Time) {
	if r.Device == "" {
		return
	}
	d := s.device(r.Device)
	if d == nil {
		if len(s.devices) == maxDevices {
			return
		}
		s.devices = append(s.devices, device{id: r.Device})
		d = &s.devices[len(s.devices)-1]
	}
	if r.PCI != "" && d.pci != r.PCI {
		d.pci = r.PCI
		s.rename(r.PCI, r.Device)
	}
	switch {
	case r.bad():
		d.goodSince = time.Time{}
	case d.goodSince.IsZero() || at.Sub(d.read) > maxGap:
		d.goodSince = at
	}
	d.read, d.speaks = at, d.speaks || r.Recovery != RecoveryUnknown
}

// rename moves findings from an address to the device's UUID.
func (s *State) rename(from, to string) {
	for i := len(s.findings) - 1; i >= 0; i-- {
		f := s.findings[i]
		if f.device != from {
			continue
		}
		s.findings[i].device = to
		for j, g := range s.findings {
			if j != i && g.cause == f.cause && g.device == to {
				s.findings[j] = joined(g, f)
				s.findings = slices.Delete(s.findings, i, i+1)
				break
			}
		}
	}
}

func joined(g, f finding) finding {
	if !g.restored && (f.restored || f.first.Before(g.first)) {
		g.first, g.text, g.source, g.restored = f.first, f.text, f.source, f.restored
	}
	g.last, g.count, g.seq = later(g.last, f.last), max(g.count, f.count), max(g.seq, f.seq)
	g.confirmed = g.confirmed || f.confirmed
	return g
}

// sign records a present sign of a cause, read from NVML.
func (s *State) sign(c Cause, device string, at time.Time, text string) {
	s.touch(c, Signal{At: at, Source: NVML, Device: device, Text: text}).confirmed = true
}

// retain prevents a finding, if there is one, from ending: it could not be checked.
func (s *State) retain(c Cause, device string, at time.Time) {
	for i := range s.findings {
		if f := &s.findings[i]; f.cause == c && f.device == device {
			f.last = later(f.last, at)
		}
	}
}

// hang records that NVML still does not answer; after the grace that is as bad as a dead GPU.
func (s *State) hang(sig Signal) {
	if s.hungSince.IsZero() {
		s.hungSince = sig.At
	}
	s.endRelease()
	s.interrupt()
	f := s.touch(DriverHangs, Signal{At: sig.At, Source: Probe, Text: sig.Text})
	f.confirmed = f.confirmed || sig.At.Sub(s.hungSince) >= HangGrace
}

// endRelease records that NVML was queried again after a repair, and did not answer: its new finding replaces the release.
func (s *State) endRelease() {
	s.released = ""
	s.findings = slices.DeleteFunc(s.findings, func(f finding) bool { return f.cause == GPUsReleased })
}

// interrupt ends the period in which devices have read well.
func (s *State) interrupt() {
	for i := range s.devices {
		s.devices[i].goodSince = time.Time{}
	}
}

// release records that NVML is not queried now, by design: the present findings stay until it is queried again.
func (s *State) release(sig Signal) {
	s.released, s.blind, s.hungSince = sig.Text, "", time.Time{}
	s.interrupt()
	s.touch(GPUsReleased, sig).confirmed = true
}

// lose records that nothing can be queried. A driver that was never there is no fault.
func (s *State) lose(sig Signal) {
	s.blind, s.hungSince = sig.Text, time.Time{}
	s.endRelease()
	s.interrupt()
	if len(s.devices) > 0 || !s.read.IsZero() {
		s.touch(DriverGone, Signal{At: sig.At, Source: Probe, Text: sig.Text}).confirmed = true
	}
	s.stopWaiting()
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
