package nodehealth

import (
	"fmt"
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
//	hang | blind TEXT | expected GPUS | declared GPUS | reboot | restart
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		s := &stage{t: t, now: epoch, state: New("boot-0"), out: out}
		return func(line string) {
			s.command(strings.Fields(line))
			s.verdict()
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
	for _, e := range v.Evidence {
		text += fmt.Sprintf("\n    %s %s %s %s: %s", e.At.Sub(epoch), e.Source, e.Cause, e.Device, e.Text)
	}
	if text != s.last {
		fmt.Fprintf(s.out, "  %s: %s\n", s.now.Sub(epoch), text)
	}
	s.last = text
}
