package kmsg

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/nodehealth"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.":             "xid 79 0000:07:00",
		"NVRM: Xid (PCI:0000:AF:00): 13, Graphics Exception":                                                       "xid 13 0000:af:00",
		"NVRM: Xid (PCI:00000000:AF:00.0): 31":                                                                     "xid 31 0000:af:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": "recovery 1 0000:3b:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)": "recovery 0 0000:3b:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, something else":                                                          "xid 154 0000:3b:00",
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 28 Minion Link DLREQ interrupt":             "sxid 22013 0000:c1:00 fatal",
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 28":                                     "sxid 12028 0000:c1:00",
		"NVRM: GPU 0000:07:00.0: GPU has fallen off the bus.":                                                      "off-bus 0 0000:07:00",
		"somebody says that a GPU at 0000:07:00 has fallen off the bus":                                            "",
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.00":                                                   "",
		"NVRM: Xid (PCI:zzzz): 79, x":                                                                              "",
		"":                                                                                                         "",
	} {
		p := parser{}
		sig, ok := p.parse(text)
		got := ""
		if ok {
			got = fmt.Sprintf("%s %d %s", sig.Kind, sig.Code, sig.Device)
			if sig.Fatal {
				got += " fatal"
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestOffTheBusOverSeveralRecords: the driver's oldest form names the device some lines before.
func TestOnlyTheKernelsOwnWordCounts(t *testing.T) {
	const line = "5,100,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
	for priority, want := range map[string]bool{"3": true, "12": false} { // 12 is facility 1: written by a program
		if _, got := (&parser{}).parse(split(priority + "," + line).text); got != want {
			t.Errorf("a record of priority %s is a signal: %v", priority, got)
		}
	}
}

func TestOffTheBusOverSeveralRecords(t *testing.T) {
	p := parser{}
	for i, text := range []string{"NVRM: The NVIDIA GPU 0000:07:00.0", "NVRM: (PCI ID: 10de:2330)", "NVRM: installed in this system has", "usb 1-1: new device", "NVRM: fallen off the bus and is not responding to commands."} {
		sig, ok := p.parse(text)
		if ok != (i == 4) {
			t.Fatalf("%q: %v", text, ok)
		}
		if ok && sig.Device != "0000:07:00" {
			t.Errorf("device %s", sig.Device)
		}
	}
	for range nearby + 1 {
		p.parse("NVRM: of no interest")
	}
	if _, ok := p.parse("NVRM: fallen off the bus"); ok {
		t.Error("an address of long ago is taken for this one")
	}
}

func follow(t *testing.T, l *Log) <-chan nodehealth.Signal {
	ctx, cancel := context.WithCancel(context.Background())
	out, done := make(chan nodehealth.Signal, 100), make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Follow(ctx, func(s nodehealth.Signal) { out <- s }); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

func next(t *testing.T, from <-chan nodehealth.Signal) nodehealth.Signal {
	t.Helper()
	select {
	case s := <-from:
		return s
	case <-time.After(2 * time.Minute):
		t.Fatal("no signal")
	}
	return nodehealth.Signal{}
}

// TestPlainFile: lines that were there, lines that come, a line that comes in parts, and a file that is cut.
func TestPlainFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("hello\nNVRM: Xid (PCI:0000:07:00): 79, x\n")
	l, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	from := follow(t, l)
	if s := next(t, from); s.Code != 79 || s.Seq != 2 {
		t.Errorf("%+v", s)
	}
	catchUp(t, from, func(seq int) { write(fmt.Sprintf("4,%d,5000000,-;NVRM: Xid (PCI:0000:07:00): 31, x\n", seq)) })
	write("4,17,5000000,-;NVRM: Xid (PCI:0000:07:00): 4")
	write("8, y\n SUBSYSTEM=pci\n")
	if s := next(t, from); s.Code != 48 || s.Seq != 18 || time.Since(s.At) > time.Minute {
		t.Errorf("%+v", s)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	write("NVRM: Xid (PCI:0000:07:00): 31, z\n")
	if s := next(t, from); s.Code != 31 {
		t.Errorf("%+v", s)
	}
}

// TestDevice: from something that answers "not now" as the device does; records of before the start keep their time.
func TestDevice(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	ago := sinceBoot() - time.Minute
	write := func(seq int, at time.Duration, text string) {
		if _, err := unix.Write(fds[1], fmt.Appendf(nil, "4,%d,%d,-;%s\n", seq, at.Microseconds(), text)); err != nil {
			t.Fatal(err)
		}
	}
	write(0, ago, "NVRM: Xid (PCI:0000:07:00): 79, x")
	from := follow(t, FromFD(fds[0], slog.New(slog.DiscardHandler)))
	if s := next(t, from); ago > 0 && time.Since(s.At) < 50*time.Second || s.Seq != 1 {
		t.Errorf("an old record: %+v", s)
	}
	catchUp(t, from, func(seq int) { write(seq, ago, "NVRM: Xid (PCI:0000:07:00): 31, x") })
}

// catchUp writes old records until one is taken for a new one: once the reader has caught up a record is of now, whatever clock it
// was written with, and a busy machine may be slower to get there than the test is to write.
func catchUp(t *testing.T, from <-chan nodehealth.Signal, write func(seq int)) {
	t.Helper()
	for seq, end := 1, time.Now().Add(2*time.Minute); ; seq++ {
		write(seq)
		if s := next(t, from); time.Since(s.At) < 40*time.Second {
			return
		}
		if time.Now().After(end) {
			t.Fatal("never caught up")
		}
	}
}
