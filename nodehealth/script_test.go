package nodehealth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/golden"
)

var epoch = time.Unix(1_700_000_000, 0).UTC()

// TestScripts plays testdata/*.txt; under a command stands the verdict that it led to, where that changed.
//
//	at SECONDS                   time passes; nothing is seen, the verdict is asked for
//	read DEVICE[:KEY=VALUE…] …   NVML answers for these devices; pci lost reset recovery pending failed ecc
//	                             links=UP/DOWN or ? width=IS/MAX speed=IS/MAX
//	well SECONDS DEVICE…         reads twice a second for so long, all well
//	xid CODE DEVICE [seq=N] [at=SECONDS] [nvml] | sxid CODE DEVICE [fatal] | offbus DEVICE | recovery CODE DEVICE
//	hang | blind TEXT | released TEXT | expected GPUS | declared GPUS | reboot | restart
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		s := &stage{t: t, now: epoch, state: New("boot-0"), out: out}
		return func(line string) {
			s.command(strings.Fields(line))
			s.verdict()
			if err := s.kept(); err != nil { // also if the golden file has the same
				t.Errorf("after %q: %v", line, err)
			}
		}
	})
}

type stage struct {
	t     *testing.T
	now   time.Time
	state State
	last  string
	boot  int
	out   *strings.Builder
}

func (s *stage) command(f []string) {
	switch f[0] {
	case "at":
		sec, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = epoch.Add(time.Duration(sec * float64(time.Second)))
		s.fold(Signal{Kind: Tick})
	case "read":
		s.read(f[1:])
	case "well":
		for range 2 * s.number(f[1]) {
			s.now = s.now.Add(500 * time.Millisecond)
			s.read(f[2:])
			s.verdict()
		}
	case "xid":
		sig := Signal{Kind: Xid, Source: Kmsg, Code: s.number(f[1]), Device: f[2], Text: "Xid " + f[1]}
		for _, o := range f[3:] {
			if v, ok := strings.CutPrefix(o, "seq="); ok {
				sig.Seq = uint64(s.number(v))
			}
			if v, ok := strings.CutPrefix(o, "at="); ok {
				sig.At = epoch.Add(time.Duration(s.number(v)) * time.Second)
			}
			if o == "nvml" {
				sig.Source = NVML
			}
		}
		s.fold(sig)
	case "sxid":
		s.fold(Signal{Kind: SXid, Source: Kmsg, Code: s.number(f[1]), Device: f[2], Fatal: len(f) > 3, Text: "SXid " + f[1]})
	case "offbus":
		s.fold(Signal{Kind: OffBus, Source: Kmsg, Device: f[1], Text: "GPU has fallen off the bus"})
	case "recovery":
		s.fold(Signal{Kind: RecoveryChanged, Source: Kmsg, Code: s.number(f[1]), Device: f[2], Text: "recovery action changed to " + f[1]})
	case "hang":
		s.fold(Signal{Kind: Hang, Source: Probe, Text: "no answer for 5s"})
	case "blind":
		s.fold(Signal{Kind: Blind, Source: Probe, Text: strings.Join(f[1:], " ")})
	case "released":
		s.fold(Signal{Kind: Released, Source: Probe, Text: strings.Join(f[1:], " ")})
	case "expected":
		s.fold(Signal{Kind: Expected, Source: API, Code: s.number(f[1]), Text: "label says so"})
	case "declared":
		s.fold(Signal{Kind: Expected, Source: API, Code: s.number(f[1]), Text: "people say so", Final: true})
	case "reboot":
		s.boot++
		s.state = Restore(fmt.Sprint("boot-", s.boot), Assess(s.state, s.now))
	case "restart":
		s.state = Restore(fmt.Sprint("boot-", s.boot), Assess(s.state, s.now))
	default:
		s.t.Fatalf("unknown command %q", f[0])
	}
}

func (s *stage) fold(sig Signal) {
	if sig.At.IsZero() {
		sig.At = s.now
	}
	s.state = Fold(s.state, sig, s.now)
}

func (s *stage) read(devices []string) {
	sig := Signal{Kind: Read, Source: NVML}
	for _, text := range devices {
		parts := strings.Split(text, ":")
		r := Reading{Device: parts[0]}
		for _, kv := range parts[1:] {
			k, v, _ := strings.Cut(kv, "=")
			switch k {
			case "pci":
				r.PCI = v
			case "lost":
				r.Lost = true
			case "reset":
				r.ResetRequired = true
			case "recovery":
				r.Recovery = s.number(v)
			case "pending":
				r.RemapPending = true
			case "failed":
				r.RemapFailed = true
			case "ecc":
				r.Uncorrected = uint64(s.number(v))
			case "links":
				if r.LinksUnknown = v == "?"; r.LinksUnknown {
					continue
				}
				r.LinksUp, r.LinksDown = s.pair(v)
			case "width":
				r.Width, r.MaxWidth = s.pair(v)
			case "speed":
				r.Speed, r.MaxSpeed = s.pair(v)
			default:
				s.t.Fatalf("unknown key %q", k)
			}
		}
		sig.Readings = append(sig.Readings, r)
	}
	s.fold(sig)
}

func (s *stage) pair(v string) (int, int) {
	a, b, _ := strings.Cut(v, "/")
	return s.number(a), s.number(b)
}

func (s *stage) number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatalf("%q is no number", v)
	}
	return n
}

func (s *stage) verdict() {
	v := Assess(s.state, s.now)
	text := fmt.Sprintf("%s %s %v: %s", v.Action, v.Cause, v.Devices, v.Message)
	if v.Action == None {
		text = fmt.Sprintf("%s: %s", v.Action, v.Message)
		if !v.Known {
			text = "Unknown: " + v.Message
		}
	} else {
		text += fmt.Sprintf("; since %s", v.Since.Sub(epoch))
	}
	if v.Soft {
		text += "; soft"
	}
	if v.Resettable {
		text += "; resettable"
	}
	for _, e := range v.Evidence {
		text += fmt.Sprintf("\n    %s %s %s %s: %s", e.At.Sub(epoch), e.Source, e.Cause, e.Device, e.Text)
	}
	if text != s.last {
		fmt.Fprintf(s.out, "  %s: %s\n", s.now.Sub(epoch), text)
	}
	s.last = text
}

// kept returns which rule of random histories the script's state breaks: bounds, further signs that heal nothing, or the way back to
// healthy.
func (s *stage) kept() error {
	v := Assess(s.state, s.now)
	if err := bounded(s.state, v); err != nil {
		return err
	}
	for _, sig := range s.signs() {
		if after := Assess(Fold(s.state, sig, s.now), s.now); after.Action < v.Action {
			return fmt.Errorf("a further %+v makes %s of %s (%s, %s)", sig, after.Action, v.Action, v.Cause, after.Cause)
		}
	}
	if after := Assess(Restore("next boot", v), s.now); after.Action != None {
		return fmt.Errorf("a reboot leaves %s (%s)", after.Action, after.Cause)
	}
	end, goesOn := s.now.Add(25*time.Hour), s.state
	for now := s.now; now.Before(end); now = now.Add(maxGap / 2) {
		if goesOn = Fold(goesOn, s.allWell(goesOn, now), now); Assess(goesOn, now).Action == None {
			return nil
		}
	}
	if v = Assess(goesOn, end); !s.listed(goesOn) {
		return nil // NVML never listed the device: only a reboot ends this finding
	}
	return fmt.Errorf("a day of good readings leaves %s (%s)", v.Action, v.Cause)
}

// signs returns signals that can only make a verdict worse: one per row of the catalogue, for every known device and for an unknown one.
func (s *stage) signs() (all []Signal) {
	devices := []string{"other"}
	for _, d := range s.state.devices {
		devices = append(devices, d.id)
	}
	for _, device := range devices {
		for _, row := range Catalogue {
			for _, code := range row.Xids[:min(1, len(row.Xids))] {
				all = append(all, Signal{At: s.now, Kind: Xid, Source: NVML, Device: device, Code: code})
			}
		}
		all = append(
			all,
			Signal{At: s.now, Kind: OffBus, Source: Kmsg, Device: device},
			Signal{At: s.now, Kind: RecoveryChanged, Source: Kmsg, Device: device, Code: RecoveryNodeReboot},
		)
	}
	return append(
		all,
		Signal{At: s.now, Kind: SXid, Source: Kmsg, Device: "switch", Code: 22013, Fatal: true},
		Signal{At: s.now, Kind: Hang, Source: Probe},
		Signal{At: s.now, Kind: Released, Source: Probe},
	)
}

// allWell returns good readings of all devices that were listed, and of as many more as the node should have.
func (s *stage) allWell(state State, at time.Time) Signal {
	sig := Signal{At: at, Kind: Read, Source: NVML}
	most := 0
	for _, d := range state.devices {
		most = max(most, d.links)
	}
	for _, d := range state.devices {
		sig.Readings = append(sig.Readings, Reading{Device: d.id, PCI: d.pci, LinksUp: most})
	}
	for i := len(sig.Readings); i < state.gpus; i++ {
		sig.Readings = append(sig.Readings, Reading{Device: fmt.Sprint("more-", i), LinksUp: most})
	}
	return sig
}

// listed reports whether NVML has listed every device that has a finding.
func (s *stage) listed(state State) bool {
	return !slices.ContainsFunc(
		state.findings,
		func(f finding) bool { return f.device != "" && f.cause != SwitchError && state.device(f.device) == nil },
	)
}
