package nodehealth

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth"
	"holdfast.dev/holdfast/nodehealth/nvml"
	standin "holdfast.dev/holdfast/test/devcluster/nvml"
)

func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("build it with: make %s: %v", name, err)
	}
	return path
}

// probed is the daemon's own probe with a simulated driver.
type probed struct {
	t       *testing.T
	driver  *standin.Server
	signals chan nodehealth.Signal
	// released and resting are what the probe's parent requests.
	released atomic.Pointer[string]
	resting  atomic.Bool
}

// probe starts the probe with a driver on which these faults happened before.
func probe(t *testing.T, before ...standin.Fault) *probed {
	dir := t.TempDir()
	library := filepath.Join(dir, standin.Library)
	if err := standin.Build(library); errors.Is(err, standin.ErrNoCompiler) {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	p := &probed{t: t, driver: standin.NewServer([]string{"GPU-a", "GPU-b"}), signals: make(chan nodehealth.Signal, 10000)}
	p.release("")
	if err := p.driver.Listen(filepath.Join(dir, standin.Socket)); err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		p.fail(f)
	}
	w := nvml.Watch{
		Command: []string{binary(t, "holdfast-nvml"), "--nvml=/nowhere/" + standin.Library + "," + library},
		Start:   time.Minute, Deadline: 3 * time.Second, Log: slog.New(slog.DiscardHandler),
		Emit:     func(s nodehealth.Signal) { p.signals <- s },
		Released: func() string { return *p.released.Load() }, Resting: p.resting.Load,
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

// until returns the first signal for which holds is true.
func (p *probed) until(what string, holds func(nodehealth.Signal) bool) nodehealth.Signal {
	p.t.Helper()
	limit := time.After(eventually.Timeout)
	for {
		select {
		case s := <-p.signals:
			if holds(s) {
				return s
			}
		case <-limit:
			p.t.Fatalf("never: %s", what)
		}
	}
}

func (p *probed) fail(f standin.Fault) {
	p.t.Helper()
	if err := p.driver.Happen(f); err != nil {
		p.t.Fatal(err)
	}
}

func (p *probed) release(by string) { p.released.Store(&by) }

// TestReleasedDriver: the probe reports released GPUs once no library has the driver open. It opens the driver again without a restart,
// also after a hang.
func TestReleasedDriver(t *testing.T) {
	p := probe(t)
	for _, before := range []standin.Fault{{}, {Hang: true}} {
		p.until("well", reads(func(a, _ nodehealth.Reading) bool { return a == healthy }))
		if users := p.driver.Users(); users != 1 {
			t.Errorf("%d libraries have the driver open", users)
		}
		p.fail(before)
		p.release("annotation")
		p.until("released", func(s nodehealth.Signal) bool { return s.Kind == nodehealth.Released })
		eventually.Holds(t, "the driver is closed", func() (bool, any) { return p.driver.Users() == 0, p.driver.Users() })
		p.fail(standin.Fault{})
		p.release("")
	}
	p.until("well after all", reads(func(a, _ nodehealth.Reading) bool { return a == healthy }))
}

// TestADriverThatWaitsForAReset: the probe opens such a driver only for moments. After the reset it keeps the driver open.
func TestADriverThatWaitsForAReset(t *testing.T) {
	p := probe(t, standin.Fault{Xid: 95})
	p.resting.Store(true)
	p.until("what the driver asks for", reads(func(a, _ nodehealth.Reading) bool { return a.Recovery == nodehealth.RecoveryGPUReset }))
	eventually.Holds(t, "the driver is closed", func() (bool, any) { return p.driver.Users() == 0, p.driver.Users() })
	p.fail(standin.Fault{})
	for range 5 {
		p.until("well", reads(func(a, _ nodehealth.Reading) bool { return a == healthy }))
	}
	if users := p.driver.Users(); users != 1 {
		t.Errorf("%d libraries have the driver open", users)
	}
}

func reads(of func(a, b nodehealth.Reading) bool) func(nodehealth.Signal) bool {
	return func(s nodehealth.Signal) bool {
		return s.Kind == nodehealth.Read && len(s.Readings) == 2 && of(s.Readings[0], s.Readings[1])
	}
}

// healthy is the first simulated GPU without a fault.
var healthy = nodehealth.Reading{Device: "GPU-a", PCI: "0000:10:00", LinksUp: 4, Width: 16, MaxWidth: 16, Speed: 5, MaxSpeed: 5}

// TestAHandleThatComesLate: a GPU that had no handle when the probe began is read as soon as the driver gives one.
func TestAHandleThatComesLate(t *testing.T) {
	p := probe(t, standin.Fault{Nameless: true})
	p.until("lost, without a name", reads(func(a, b nodehealth.Reading) bool {
		return a == nodehealth.Reading{Lost: true, Recovery: nodehealth.RecoveryUnknown} && b.Device == "GPU-b" && !b.Lost
	}))
	p.fail(standin.Fault{})
	p.until("well", reads(func(a, _ nodehealth.Reading) bool { return a == healthy }))
	p.fail(standin.Fault{Xid: 31})
	if sig := p.until("what it reports", func(s nodehealth.Signal) bool { return s.Kind == nodehealth.Xid }); sig.Device != "GPU-a" {
		t.Errorf("%+v", sig)
	}
}

func TestProbeReads(t *testing.T) {
	p := probe(t)
	want := healthy
	p.until("well", reads(func(a, b nodehealth.Reading) bool { return a == want && b.Device == "GPU-b" }))
	for _, c := range []struct {
		fault standin.Fault
		want  func(a nodehealth.Reading) bool
	}{
		{standin.Fault{Lost: true}, func(r nodehealth.Reading) bool { return r.Lost }},
		{standin.Fault{}, func(r nodehealth.Reading) bool { return r == want }},
		{standin.Fault{Xid: 63}, func(r nodehealth.Reading) bool { return r.RemapPending && !r.RemapFailed }},
		{standin.Fault{Xid: 64}, func(r nodehealth.Reading) bool { return r.RemapFailed && r.Recovery == nodehealth.RecoveryGPUReset }},
		{standin.Fault{Xid: 48}, func(r nodehealth.Reading) bool { return r.Uncorrected == 1 }},
		{standin.Fault{}, func(r nodehealth.Reading) bool { return r == want }},
		{standin.Fault{LinksDown: 1}, func(r nodehealth.Reading) bool { return r.LinksUp == 3 && r.LinksDown == 1 }},
		{standin.Fault{LinksUnread: true}, func(r nodehealth.Reading) bool { return r.LinksUnknown && r.LinksUp+r.LinksDown == 0 }},
		{standin.Fault{Lanes: 8}, func(r nodehealth.Reading) bool { return r.Width == 8 && r.MaxWidth == 16 }},
		{standin.Fault{}, func(r nodehealth.Reading) bool { return r == want }},
		{standin.Fault{OldDriver: true}, func(r nodehealth.Reading) bool { return r.Recovery == nodehealth.RecoveryUnknown && !r.Lost }},
	} {
		p.fail(c.fault)
		p.until("as it is after the fault", reads(func(a, b nodehealth.Reading) bool { return c.want(a) && b.Device == "GPU-b" && !b.Lost }))
	}
}

// TestProbeListens: an error is reported when it happens, followed by the driver's recovery action.
func TestProbeListens(t *testing.T) {
	p := probe(t)
	p.until("well", reads(func(a, _ nodehealth.Reading) bool { return !a.Lost }))
	began := time.Now()
	p.fail(standin.Fault{GPU: 1, Xid: 79})
	sig := p.until("the event", func(s nodehealth.Signal) bool { return s.Kind == nodehealth.Xid })
	if sig.Code != 79 || sig.Device != "GPU-b" {
		t.Errorf("%+v", sig)
	}
	p.until("lost", reads(func(_, b nodehealth.Reading) bool { return b.Lost }))
	t.Logf("event %s after the fault, the driver's action %s", sig.At.Sub(began), time.Since(began))
}

// TestProbeHangs: hanging calls are reported repeatedly, until a call returns.
func TestProbeHangs(t *testing.T) {
	p := probe(t)
	p.until("well", reads(func(a, _ nodehealth.Reading) bool { return !a.Lost }))
	p.fail(standin.Fault{Hang: true})
	for range 3 {
		p.until("it hangs", func(s nodehealth.Signal) bool { return s.Kind == nodehealth.Hang })
	}
	p.fail(standin.Fault{})
	p.until("well again", reads(func(a, _ nodehealth.Reading) bool { return !a.Lost }))
}

func TestProbeWithoutDriver(t *testing.T) {
	p := &probed{t: t, signals: make(chan nodehealth.Signal, 10000)}
	w := nvml.Watch{Command: []string{binary(t, "holdfast-nvml"), "--nvml=/nowhere/" + standin.Library}, Start: time.Minute, Deadline: 30 * time.Second,
		Log: slog.New(slog.DiscardHandler), Emit: func(s nodehealth.Signal) { p.signals <- s }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	s := p.until("nothing to ask", func(s nodehealth.Signal) bool { return s.Kind == nodehealth.Blind })
	if want := "no NVIDIA driver answers on this node (/nowhere/libnvidia-ml.so.1: library not found)"; s.Text != want {
		t.Errorf("%q, want %q", s.Text, want)
	}
}
