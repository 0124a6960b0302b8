package nodehealth

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// maxFindings, maxDevices and maxReturns bound a State whatever comes in.
	maxFindings = 64
	maxDevices  = 64
	maxReturns  = 64
	// maxText bounds what is kept of a signal's text, in bytes.
	maxText = 240
	// maxGap: with no reading for so long, a device counts as just found.
	maxGap = 10 * time.Second
	// freshFor: a device that was read so recently is one whose driver can be waited for.
	freshFor = 5 * time.Second
	// sameAs: signs of one cause this close together are one.
	sameAs = time.Second
)

// State is what has been seen of one node under one boot. It is a value: Fold leaves its argument alone.
type State struct {
	boot     string
	findings []finding
	devices  []device
	returns  []recurrence
	// settled: kernel log records up to this number were dealt with.
	settled uint64
	// read is when NVML last answered, readSince since when it has answered without a break; hungSince is
	// zero unless it hangs.
	read, readSince, hungSince time.Time
	// blind is why there is nothing to ask; empty: there is, or nobody has tried yet.
	blind string
	// released is at whose word NVML is not asked now; empty: it is.
	released string
	// gpus is how many GPUs the node is to have, 0: nobody knows. It is the most that labels said or NVML listed, under this boot
	// or one before, because a GPU that is gone after a boot is counted by nobody. declared: people say so, whatever was seen.
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
	// confirmed: the action need not wait for the driver or the grace any more. restored: an earlier process
	// found it, and when it was first seen stands.
	confirmed, restored bool
	// past: read from the log long after it happened; only the driver can say that it still is so.
	past bool
}

// device is what NVML last said. goodSince is zero while it is bad.
type device struct {
	id, pci         string
	read, goodSince time.Time
	speaks          bool
	// links is the most that were ever active under this boot.
	links int
}

// recurrence remembers how often a cause went away and came again.
type recurrence struct {
	cause  Cause
	device string
	healed time.Time
	times  int
}

// New is the state of a node of which nothing has been seen.
func New(boot string) State { return State{boot: boot} }

// Restore goes on from what an earlier process knew. Under another boot nothing of it holds but how many GPUs there were.
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
		// What ranks before the verdict's cause was not confirmed, or it would be the cause.
		s.findings = append(s.findings, finding{cause: e.Cause, device: e.Device, source: e.Source, text: e.Text, first: e.At, last: e.At,
			count: max(1, Catalogue[at].Repeat), confirmed: v.Action == Evict && at >= rank(v.Cause), restored: true})
	}
	return s
}

// Fold takes one signal in. Now is the present time; a signal may be older.
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
		s.heal(now) // what is gone is not brought back by what this round cannot tell
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

// known turns the PCI address of a device that NVML has listed into its UUID.
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

// event is a thing that happened once. Where the row allows it and the driver can be asked, its word is awaited.
func (s *State) event(c Cause, sig Signal, now time.Time) {
	f := s.touch(c, sig)
	f.past = !f.confirmed && now.Sub(f.last) > HoldOffBlind
	d := s.device(sig.Device)
	asked := d != nil && d.speaks && s.hungSince.IsZero() && sig.At.Sub(d.read) < freshFor
	unasked := s.read.IsZero() && s.blind == "" || s.unread() || s.released != ""
	f.confirmed = f.confirmed || !f.past && (!Catalogue[rank(c)].Confirm || !asked && !unasked)
}

// unread reports whether no driver was ever read under this boot, so that errors have nothing to be compared with.
func (s *State) unread() bool { return s.read.IsZero() && len(s.devices) == 0 }

// stopWaiting confirms what waits for a driver that says nothing about it. One that was never read is not waited for, and confirms nothing.
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

// touch finds or makes the finding and notes that it was seen.
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

// dropWeakest makes room: the least action, of these the last row, goes.
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

// recovery is the driver's word in the kernel log. Where NVML reads the device it says the same, sooner.
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

// round takes the readings of all devices that NVML lists. One that it listed before and does not now is lost.
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

// expect takes in how many GPUs the node is to have. What people say holds until they say something else; a label that says
// less than was seen was counted without the GPU that is gone.
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

// links compares what is active with what was, and with what most other GPUs of the node have: NVML does not say how
// many links are wired.
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
		if r.LinksUnknown { // what was down is so until they can be counted again
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

// note keeps what a reading says of the device as such, and joins what was known under its address.
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

// rename moves findings from an address to the UUID that it turned out to be.
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

// sign notes something that is so at this moment, read from NVML.
func (s *State) sign(c Cause, device string, at time.Time, text string) {
	s.touch(c, Signal{At: at, Source: NVML, Device: device, Text: text}).confirmed = true
}

// retain keeps a finding, if there is one, from going away: nothing was seen of it, because it could not be looked.
func (s *State) retain(c Cause, device string, at time.Time) {
	for i := range s.findings {
		if f := &s.findings[i]; f.cause == c && f.device == device {
			f.last = later(f.last, at)
		}
	}
}

// hang notes that NVML still does not answer; after the grace that is as bad as a dead GPU.
func (s *State) hang(sig Signal) {
	if s.hungSince.IsZero() {
		s.hungSince = sig.At
	}
	s.endRelease()
	s.interrupt()
	f := s.touch(DriverHangs, Signal{At: sig.At, Source: Probe, Text: sig.Text})
	f.confirmed = f.confirmed || sig.At.Sub(s.hungSince) >= HangGrace
}

// endRelease notes that NVML was asked again after a repair, and did not answer: what it said instead stands alone.
func (s *State) endRelease() {
	s.released = ""
	s.findings = slices.DeleteFunc(s.findings, func(f finding) bool { return f.cause == GPUsReleased })
}

// interrupt ends the time for which devices have been read well.
func (s *State) interrupt() {
	for i := range s.devices {
		s.devices[i].goodSince = time.Time{}
	}
}

// release notes that NVML is not asked now, by intention: what is known stands until it is asked again.
func (s *State) release(sig Signal) {
	s.released, s.blind, s.hungSince = sig.Text, "", time.Time{}
	s.interrupt()
	s.touch(GPUsReleased, sig).confirmed = true
}

// lose notes that there is nothing to ask. That a driver was never there is no fault.
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
