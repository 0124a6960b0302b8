package kmsg

import (
	"regexp"
	"strings"
	"testing"

	"holdfast.dev/holdfast/nodehealth"
)

var normal = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}$`)

// FuzzEntry: only a record that begins with the driver's own words is a signal, for a device in the form that NVML uses. The same words
// after other text, or in a program's record, are no signal.
func FuzzEntry(f *testing.F) {
	for _, s := range []string{
		"4,100,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		"4,1,2,-;NVRM: Xid (PCI:00000000:3B:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n SUBSYSTEM=pci",
		"3,1,2,c;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 3 error", "4,1,2,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
		`3,1,2,-;NVRM: The NVIDIA GPU 0000:3b:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`,
		"12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79", "3,1,2,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:3b:00): 79'", "", ";", "4,99999999999999999999,99999999999999999999,-;x",
		"4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 99999999999999999999",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		r, own := split(entry)
		if strings.ContainsRune(r.text, '\n') || len(r.text) > len(entry) || r.since < 0 {
			t.Fatalf("%q is taken apart as %+v", entry, r)
		}
		if !own && r.text != "" && !strings.Contains(entry, r.text) {
			t.Fatalf("%q holds no %q", entry, r.text)
		}
		if priority, _, _ := strings.Cut(entry, ","); own && len(strings.TrimLeft(priority, "0")) > 1 {
			t.Fatalf("%q is believed, and is a program's", entry)
		}
		sig, ok := parse(r.text)
		for _, before := range []string{"tmpfs: ", " ", "x", "NVRM: ", "nvidia: "} {
			if _, forged := parse(before + r.text); forged && !strings.HasPrefix(before+r.text, "NVRM: ") && !strings.HasPrefix(before+r.text, "nvidia-nvswitch") {
				t.Fatalf("%q is believed behind %q", r.text, before)
			}
		}
		if !ok {
			return
		}
		driver := strings.HasPrefix(r.text, "NVRM: ") || strings.HasPrefix(r.text, "nvidia-nvswitch")
		if !driver || !normal.MatchString(sig.Device) || sig.Code < 0 || sig.Source != nodehealth.Kmsg || sig.Text != r.text {
			t.Fatalf("%q is %+v", r.text, sig)
		}
		if len(sig.Device) == 12 && strings.HasPrefix(sig.Device, "0000") {
			t.Fatalf("%q: NVML writes %s in another way", r.text, sig.Device)
		}
	})
}
