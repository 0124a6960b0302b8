package kmsg

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/nodehealth"
)

// said returns the signal of a record as text; "": none.
func said(entry string) string {
	r, kernels := split(entry)
	if !kernels {
		return ""
	}
	sig, ok := parse(r.text)
	if !ok {
		return ""
	}
	fatal := ""
	if sig.Fatal {
		fatal = " fatal"
	}
	return fmt.Sprintf("%s %d %s%s", sig.Kind, sig.Code, sig.Device, fatal)
}

// TestParse has records of real drivers, in the form in which /dev/kmsg returns them.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.":                                    "xid 79 0000:07:00",
		"NVRM: Xid (PCI:0000:AF:00): 13, Graphics Exception":                                                                              "xid 13 0000:af:00",
		"NVRM: Xid (PCI:00000000:AF:00.0): 31":                                                                                            "xid 31 0000:af:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)":                        "recovery 1 0000:3b:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, pid=7, name=python3, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": "recovery 2 0000:3b:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)":                        "recovery 0 0000:3b:00",
		"NVRM: Xid (PCI:0000:3b:00): 154, something else":                                                                                 "xid 154 0000:3b:00",
		"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No":                         "xid 94 0000:01:00",
		"NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 48, pid=7, name=python3, DBE":                                                     "xid 48 0000:3b:00",
		// The driver never prints such a line.
		"NVRM: Xid (PCI:0000:3b:00 GPU-CI:00): 48, x":                                  "",
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 28 Minion Link": "sxid 22013 0000:c1:00 fatal",
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 28":         "sxid 12028 0000:c1:00",
		"NVRM: GPU 0000:07:00.0: GPU has fallen off the bus.":                          "off-bus 0 0000:07:00",
		`NVRM: The NVIDIA GPU 0000:07:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`: "off-bus 0 0000:07:00",
		`NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:2330)\x0aNVRM: installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`: "off-bus 0 0000:07:00",
		`NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:2330)\x0aNVRM: installed in this system is not supported by the\x0aNVRM: NVIDIA 570.00 driver release.`:     "",
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.00": "",
		"NVRM: Xid (PCI:zzzz): 79, x":                            "",
		"":                                                       "",
	} {
		for _, flag := range []string{"-", "c", "-,caller=T1"} { // old drivers mark their records as continuations
			entry := "3,100,5000000," + flag + ";" + text + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:07:00.0\n"
			if got := said(entry); got != want {
				t.Errorf("%q: %q, want %q", entry, got, want)
			}
		}
	}
}

// TestOnlyTheDriverIsBelieved: programs can write records. A program that mounts in a user namespace, or that crashes under a chosen name,
// can make the kernel quote its text.
func TestOnlyTheDriverIsBelieved(t *testing.T) {
	const lost = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
	if got := said("3,5,100,-;" + lost); got == "" {
		t.Fatal("the driver itself is not believed")
	}
	for _, entry := range []string{
		"12,5,100,-;" + lost, // facility 1: a program wrote the record
		"4294967296003,5,100,-;" + lost,
		"99999999999999999999,5,100,-;" + lost,
		lost,
		"kern: 3,5,100,-;" + lost,
		"3,5,100,-;tmpfs: Unknown parameter '" + lost + "'",
		"3,5,100,-;tmpfs: Bad value for '" + lost + "'",
		`3,5,100,-;tmpfs: Unknown parameter 'x\x0a` + lost + `'`,
		"3,5,100,-;overlayfs: failed to resolve '" + lost + "': -2",
		"3,5,100,-; " + lost,
		"3,5,100,-;x\n" + lost,
		"3,5,100,-;tmpfs: Unknown parameter 'nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, x'",
		// A process chooses its name of 15 bytes, and the name of 255 bytes of a file that it maps.
		"6,5,100,-;NVRM: x[7]: segfault at 0 ip 0 sp 0 error 4 in 0000:3b:00.0 has fallen off the bus[400000+1000]",
		"6,5,100,-;NVRM: GPU 0000:[7]: segfault at 0 ip 0 sp 0 error 4 in 3b:00.0: GPU has fallen off the bus.",
		`6,5,100,-;NVRM: The NVIDI[7]: segfault at 0 ip 0 sp 0 error 4 in x\x0aNVRM: fallen off the bus and is not responding to commands.`,
		"6,5,100,-;NVRM: Xid (PCI:[7]: segfault at 0 ip 0 sp 0 error 4 in 0000:3b:00): 79, GPU has fallen off the bus.",
		"6,5,100,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.[7]: segfault",
		"3,5,100,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00 x): 79, GPU has fallen off the bus.",
		"3,5,100,-;NVRM: Xid (PCI:0000:3b:00 GPU-I: GPU-CI:00): 79, GPU has fallen off the bus.",
	} {
		if got := said(entry); got != "" {
			t.Errorf("%q is believed: %s", entry, got)
		}
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

// TestDevice: the fake device returns one record at a time and EAGAIN, like the real one. Records from before the start have their own
// time, and their numbers are the kernel's.
func TestDevice(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) }) // after the reader has ended, because the end of a log is an error for it
	ago := max(0, sinceBoot()-time.Minute)   // a machine may have booted just now
	write := func(seq int, at time.Duration, text string) {
		if _, err := unix.Write(fds[1], fmt.Appendf(nil, "4,%d,%d,-;%s\n SUBSYSTEM=pci\n", seq, at.Microseconds(), text)); err != nil {
			t.Fatal(err)
		}
	}
	write(0, ago, "NVRM: Xid (PCI:0000:07:00): 79, x")
	from := follow(t, FromFD(fds[0], slog.New(slog.DiscardHandler)))
	if s := next(t, from); ago > 0 && time.Since(s.At) < 50*time.Second || s.Seq != 1 {
		t.Errorf("an old record: %+v", s)
	}
	catchUp(t, from, func(seq int) { write(seq, ago, "NVRM: Xid (PCI:0000:07:00): 31, x") })
	write(16, ago, "usb 1-1: new device")
	write(17, ago, "NVRM: Xid (PCI:0000:07:00): 48, y")
	if s := next(t, from); s.Code != 48 || s.Seq != 18 || time.Since(s.At) > time.Minute {
		t.Errorf("%+v", s)
	}
}

// TestPlainFile: a file that ends is not the kernel's device, and its lines are not trusted.
func TestPlainFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(path, []byte("NVRM: Xid (PCI:0000:07:00): 79, x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	err = l.Follow(t.Context(), func(s nodehealth.Signal) { t.Errorf("%+v", s) })
	if err == nil || !strings.Contains(err.Error(), "not the kernel's device") {
		t.Errorf("%v", err)
	}
}

// catchUp writes old records until the reader treats one as new. Once the reader has caught up, each record gets the present time, whatever
// time is in it. A busy machine may be slower to get there than the test is to write.
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
