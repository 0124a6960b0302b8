package nodehealth

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/seeds"
)

var names = []string{"a", "b", "c"}

func randomReading(r *rand.Rand, device string) Reading {
	out := well(device)
	switch r.IntN(12) {
	case 0:
		out.Lost = true
	case 1:
		out.ResetRequired = true
	case 2:
		out.Recovery = r.IntN(10) - 1
	case 3:
		out.RemapPending = true
	case 4:
		out.RemapFailed = true
	case 5:
		out.Uncorrected = uint64(r.IntN(3))
	case 6:
		out.LinksUp, out.LinksDown = 3, 1
	case 7:
		out.LinksUp, out.LinksUnknown = 0, true
	}
	return out
}

// bad returns a signal that can only make a verdict worse.
func bad(r *rand.Rand, at time.Time) Signal {
	device := names[r.IntN(len(names))]
	if r.IntN(2) == 0 {
		device = "p" + device
	}
	switch r.IntN(7) {
	case 6:
		return Signal{At: at, Kind: Released, Source: Probe, Text: "a repair"}
	case 0:
		return Signal{At: at, Kind: SXid, Source: Kmsg, Device: "sw", Code: 10000 + r.IntN(15000), Fatal: r.IntN(2) == 0}
	case 1:
		return Signal{At: at, Kind: OffBus, Source: Kmsg, Device: device}
	case 2:
		return Signal{At: at, Kind: RecoveryChanged, Source: Kmsg, Device: device, Code: 1 + r.IntN(9)}
	case 3:
		return Signal{At: at, Kind: Hang, Source: Probe}
	}
	return Signal{At: at, Kind: Xid, Source: NVML, Device: device, Code: r.IntN(180)}
}

func randomSignal(r *rand.Rand, at time.Time) Signal {
	switch r.IntN(4) {
	case 0:
		return bad(r, at)
	case 1:
		if r.IntN(4) == 0 {
			return Signal{At: at, Kind: Blind, Source: Probe, Text: "gone"}
		}
		return Signal{At: at, Kind: RecoveryChanged, Source: Kmsg, Device: "p" + names[r.IntN(len(names))]}
	}
	return round(at, func(d string) Reading { return randomReading(r, d) })
}

func round(at time.Time, of func(string) Reading) Signal {
	sig := Signal{At: at, Kind: Read, Source: NVML}
	for _, n := range names {
		sig.Readings = append(sig.Readings, of(n))
	}
	return sig
}

func well(device string) Reading { return Reading{Device: device, PCI: "p" + device, LinksUp: 4} }

// history plays a random history and returns its last state.
func history(r *rand.Rand, check func(before, after State, sig Signal, now time.Time)) (State, time.Time) {
	s, now := New("boot"), epoch
	for range r.IntN(200) {
		now = now.Add(time.Duration(r.Int64N(int64(5 * time.Second))))
		if r.IntN(30) == 0 {
			now = now.Add(time.Duration(r.Int64N(int64(2 * time.Hour))))
		}
		before, sig := s, randomSignal(r, now)
		s = Fold(s, sig, now)
		if check != nil {
			check(before, s, sig, now)
		}
	}
	return s, now
}

func each(t *testing.T, do func(t *testing.T, r *rand.Rand)) {
	for seed := range seeds.All(t, uint64(150)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { do(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// TestAlwaysAWayBack: after any history a node whose GPUs read well becomes healthy without an administrator. So does a node that was
// rebooted.
func TestAlwaysAWayBack(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand) {
		s, now := history(r, nil)
		if v := Assess(Restore("next boot", Assess(s, now)), now); v.Action != None {
			t.Errorf("after a reboot: %+v", v)
		}
		// This history has no addresses that NVML never listed.
		for end := now.Add(25 * time.Hour); now.Before(end); now = now.Add(5 * time.Second) {
			if s = Fold(s, round(now, well), now); Assess(s, now).Action == None {
				break
			}
		}
		if v := Assess(s, now); v.Action != None || !v.Known {
			t.Errorf("after a day of good readings: %+v", v)
		}
	})
}

// TestAWayBackWithoutADriver: if no driver was ever read, an error in the log evicts at most for the hold-off. Only a recovery action of
// the driver stays until the driver withdraws it.
func TestAWayBackWithoutADriver(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand) {
		s, now := New("boot"), epoch
		blind := func() { s = Fold(s, Signal{At: now, Kind: Blind, Source: Probe, Text: "no library"}, now) }
		blind()
		asks := map[string]bool{}
		for seq := range uint64(r.IntN(60)) {
			now = now.Add(time.Duration(r.Int64N(int64(10 * time.Minute))))
			sig := bad(r, now)
			switch sig.Kind {
			case Hang, Released:
				continue
			case RecoveryChanged:
				asks[sig.Device] = true
			case Xid:
				sig.Source = Kmsg
			}
			sig.Seq = seq + 1
			s = Fold(s, sig, now)
			if r.IntN(10) == 0 {
				s = Restore("boot", Assess(s, now))
			}
			blind()
			v := Assess(s, now)
			row, _ := RowOf(v.Cause)
			if v.Action == Evict && row.Confirm && len(asks) == 0 {
				t.Fatalf("%s evicts without the driver's word", v.Cause)
			}
		}
		now = now.Add(HoldOffMax)
		blind()
		if v := Assess(s, now); v.Action != None && len(asks) == 0 {
			t.Errorf("stands for ever: %s %s", v.Action, v.Cause)
		}
		for device := range asks {
			s = Fold(s, Signal{At: now, Kind: RecoveryChanged, Source: Kmsg, Device: device}, now)
		}
		if v := Assess(s, now); v.Action > Watch {
			t.Errorf("the driver asks for nothing more, and there stands %s %s", v.Action, v.Cause)
		}
	})
}

// TestReleasedHealsNothing: while the GPUs are released no finding that excludes the node ends, and the node gets no job.
func TestReleasedHealsNothing(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand) {
		s, now := history(r, nil)
		before := Assess(s, now)
		for range 20 {
			s = Fold(s, Signal{At: now, Kind: Released, Source: Probe, Text: "a repair"}, now)
			v := Assess(s, now)
			if v.Action < max(before.Action, Exclude) || v.Released != "a repair" || !v.Soft {
				t.Fatalf("%+v after %+v", v, before)
			}
			stands := slices.ContainsFunc(s.findings, func(f finding) bool { return f.cause == before.Cause && !s.gone(f, now) })
			if before.Action >= Exclude && !stands {
				t.Fatalf("%s has ended", before.Cause)
			}
			above := before.Action > Exclude || rank(before.Cause) < rank(GPUsReleased)
			if before.Action >= Exclude && above && v.Cause != before.Cause {
				t.Fatalf("%s was %s", v.Cause, before.Cause)
			}
			now = now.Add(time.Duration(r.Int64N(int64(time.Hour))))
		}
	})
}

// TestMoreEvidenceNeverHeals: at one instant a further bad sign makes no verdict milder.
func TestMoreEvidenceNeverHeals(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand) {
		s, now := history(r, nil)
		for range 30 {
			before, sig := Assess(s, now), bad(r, now)
			s = Fold(s, sig, now)
			if after := Assess(s, now); after.Action < before.Action {
				t.Fatalf("%+v made %s of %s (%s, %s)", sig, after.Action, before.Action, before.Cause, after.Cause)
			}
		}
	})
}

// TestSameInputSameVerdict: Fold does not change its argument, and returns the same result again.
func TestSameInputSameVerdict(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand) {
		history(r, func(before, after State, sig Signal, now time.Time) {
			if again := Fold(before, sig, now); !reflect.DeepEqual(again, after) {
				t.Fatalf("%+v led to\n%+v and to\n%+v", sig, after, again)
			}
		})
	})
}

// TestBounded: state and evidence stay small for any signals, and each verdict has a remedy.
func TestBounded(t *testing.T) {
	s, now := New("boot"), epoch
	r := rand.New(rand.NewPCG(seeds.Fresh(t), 2))
	for i := range 5000 {
		now = now.Add(time.Millisecond)
		s = Fold(
			s,
			Signal{
				At:     now,
				Kind:   Xid,
				Source: Kmsg,
				Device: fmt.Sprint("p", r.IntN(1000)),
				Code:   r.IntN(200),
				Text:   fmt.Sprintf("%0*d", r.IntN(2000), i),
			},
			now,
		)
		s = Fold(s, Signal{At: now, Kind: Read, Readings: []Reading{randomReading(r, fmt.Sprint("d", r.IntN(1000)))}}, now)
		if err := bounded(s, Assess(s, now)); err != nil {
			t.Fatal(err)
		}
	}
}

// bounded returns which part of a state or of its verdict is too large or missing.
func bounded(s State, v Verdict) error {
	if len(s.findings) > maxFindings || len(s.devices) > maxDevices || len(s.returns) > maxReturns || len(v.Evidence) > MaxEvidence ||
		len(v.Devices) > maxFindings {
		return fmt.Errorf("%d findings, %d devices, %d returns, %d evidence", len(s.findings), len(s.devices), len(s.returns), len(v.Evidence))
	}
	for _, e := range v.Evidence {
		if len(e.Text) > maxText {
			return fmt.Errorf("evidence of %d bytes", len(e.Text))
		}
	}
	if v.Action > None && (v.Cause == "" || v.Message == "" || v.Next == "" || v.Since.IsZero() || len(v.Evidence) == 0) {
		return fmt.Errorf("says too little: %+v", v)
	}
	return nil
}

// TestRestartKeepsTheVerdict: a process restarts from its last verdict and goes on reading. Its verdict is never milder at first than that
// of a process that did not restart, and is the same after the hold-off.
func TestRestartKeepsTheVerdict(t *testing.T) {
	each(t, func(t *testing.T, r *rand.Rand) {
		s, now := history(r, nil)
		v := Assess(s, now)
		if again := Assess(Restore("boot", v), now); again.Action != v.Action || again.Cause != v.Cause {
			t.Fatalf("restored %s %s from %s %s", again.Action, again.Cause, v.Action, v.Cause)
		}
		if r.IntN(3) > 0 || len(s.findings) > MaxEvidence {
			return // findings that were dropped return when they are seen again
		}
		// From here on the driver may report a GPU or a link less. The old state knows them, and the restored state must know them too.
		var stays []Reading
		for _, name := range names {
			if reading := randomReading(r, name); r.IntN(6) > 0 {
				reading.LinksUp, reading.LinksDown = r.IntN(5), 0
				stays = append(stays, reading)
			}
		}
		restored := Restore("boot", v)
		for end := now.Add(HoldOffMax + 10*time.Minute); now.Before(end); now = now.Add(maxGap - time.Second) {
			sig := Signal{At: now, Kind: Read, Source: NVML, Readings: stays}
			s, restored = Fold(s, sig, now), Fold(restored, sig, now)
		}
		if a, b := Assess(s, now), Assess(restored, now); max(a.Action, b.Action) >= Exclude && (a.Action != b.Action || a.Cause != b.Cause) {
			t.Fatalf("%v: %s %s without a restart, %s %s with one", stays, a.Action, a.Cause, b.Action, b.Cause)
		}
	})
}

func TestCatalogue(t *testing.T) {
	seen := map[int]Cause{}
	causes := map[Cause]bool{}
	for i, row := range Catalogue {
		if causes[row.Cause] {
			t.Errorf("two rows for %s", row.Cause)
		}
		causes[row.Cause] = true
		if row.Meaning == "" || row.Next == "" || row.Exit == "" {
			t.Errorf("%s says too little", row.Cause)
		}
		if i > 0 && Catalogue[i-1].Action < row.Action {
			t.Errorf("%s is worse than %s before it", row.Cause, Catalogue[i-1].Cause)
		}
		if row.Exit == ExitQuiet && row.Action > Watch {
			t.Errorf("%s keeps jobs away and would go just because it is quiet", row.Cause)
		}
		for _, x := range row.Xids {
			if c, twice := seen[x]; twice {
				t.Errorf("Xid %d is %s and %s", x, c, row.Cause)
			}
			seen[x] = row.Cause
		}
	}
	for code, want := range map[int]Cause{
		79:   OffTheBus,
		119:  GSPTimeout,
		13:   ApplicationRepeats,
		31:   ApplicationRepeats,
		39:   ApplicationRepeats,
		41:   ApplicationRepeats,
		42:   UnknownXid,
		43:   Noted,
		95:   GPUFault,
		63:   RowRemapPending,
		64:   RowRemapFailed,
		9999: UnknownXid,
	} {
		if got := ofXid(code); got != want {
			t.Errorf("Xid %d is %s, want %s", code, got, want)
		}
	}
	if !slices.IsSorted(application()) {
		t.Error("codes of applications are not sorted")
	}
}
