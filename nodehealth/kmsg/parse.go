package kmsg

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

const (
	address = `([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?`
	// apart is what lies between two words of the driver: a space or the end of a line, which the kernel writes as an escape.
	apart = `(?: |\\x0aNVRM: )`
	// instances are the GPU instance and the compute instance that an Xid is of, on a GPU in MIG mode; it stays the whole GPU's.
	instances = `(?: GPU-I:\d+(?: GPU-CI:\d+)?)?`
)

// The driver's words count only where a record begins with them, and in full: tenants can make the kernel print words of theirs, but
// behind words of its own ("tmpfs: Unknown parameter '…'"), or behind at most the 15 bytes of a process's or a network device's name.
var (
	header   = regexp.MustCompile(`^(\d+),(\d+),(\d+),[^;]*;`)
	xid      = regexp.MustCompile(`^NVRM: Xid \(PCI:` + address + instances + `\): (\d+)(?:, *(.*))?$`)
	sxid     = regexp.MustCompile(`^nvidia-nvswitch\d+: SXid \(PCI:` + address + `\): (\d+)(?:, *(.*))?$`)
	recovery = regexp.MustCompile(`recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x([0-9a-fA-F]+)`)
	offBus   = []*regexp.Regexp{
		regexp.MustCompile(`^NVRM: GPU ` + address + `: GPU has fallen off the bus\.?$`),
		regexp.MustCompile(`^NVRM: The NVIDIA GPU ` + address + apart + `\(PCI ID: [0-9a-f]{4}:[0-9a-f]{4}\)` + apart + `installed in this system has` +
			apart + `fallen off the bus and is not responding to commands\.$`),
	}
)

// recoveryChanged is the Xid by which the driver tells its recovery action.
const recoveryChanged = 154

// record is one entry of the kernel log.
type record struct {
	seq uint64
	// since is the time since boot.
	since time.Duration
	text  string
}

// split takes an entry apart; ok is false where it is not the kernel's own word, but a program's.
func split(entry string) (r record, ok bool) {
	entry, _, _ = strings.Cut(entry, "\n") // what follows are fields for machines
	m := header.FindStringSubmatch(entry)
	if m == nil {
		return record{}, false
	}
	priority, err := strconv.Atoi(m[1])
	seq, noSeq := strconv.ParseUint(m[2], 10, 64)
	us, noTime := strconv.ParseUint(m[3], 10, 53) // more would be no time.Duration
	if errors.Join(err, noSeq, noTime) != nil {
		return record{}, false
	}
	r = record{seq: seq, since: time.Duration(us) * time.Microsecond, text: strings.TrimRight(entry[len(m[0]):], " \t")}
	return r, priority>>3 == 0
}

// parse finds the signal in the text of a record.
func parse(text string) (nodehealth.Signal, bool) {
	sig := nodehealth.Signal{Source: nodehealth.Kmsg, Text: text}
	if m := xid.FindStringSubmatch(text); m != nil {
		sig.Kind, sig.Device = nodehealth.Xid, device(m[1])
		sig.Code, _ = strconv.Atoi(m[2])
		if to := recovery.FindStringSubmatch(m[3]); to != nil && sig.Code == recoveryChanged {
			code, err := strconv.ParseInt(to[1], 16, 32)
			sig.Kind, sig.Code = nodehealth.RecoveryChanged, int(code)
			return sig, err == nil
		}
		return sig, true
	}
	if m := sxid.FindStringSubmatch(text); m != nil {
		sig.Kind, sig.Device = nodehealth.SXid, device(m[1])
		sig.Code, _ = strconv.Atoi(m[2])
		sig.Fatal = strings.HasPrefix(strings.ToLower(m[3]), "fatal")
		return sig, true
	}
	for _, words := range offBus {
		if m := words.FindStringSubmatch(text); m != nil {
			sig.Kind, sig.Device = nodehealth.OffBus, device(m[1])
			return sig, true
		}
	}
	return sig, false
}

// device is an address as NVML's side writes it: four digits of domain, lower case.
func device(address string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(address), ":")
	if len(domain) > 4 && strings.Trim(domain[:len(domain)-4], "0") == "" {
		domain = domain[len(domain)-4:]
	}
	return domain + ":" + rest
}
