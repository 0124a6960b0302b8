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
	// apart separates two words of the driver: a space or a line end, which the kernel escapes.
	apart = `(?: |\\x0aNVRM: )`
	// instances are the GPU instance and the compute instance of an Xid in MIG mode; the Xid counts for the whole GPU.
	instances = `(?: GPU-I:\d+(?: GPU-CI:\d+)?)?`
)

// A record counts only if it begins with the driver's complete words. Tenants can make the kernel print their words, but only after the
// kernel's own ("tmpfs: Unknown parameter '…'"), or after the name of a process or a network device of at most 15 bytes.
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

// recoveryChanged is the Xid with which the driver reports its recovery action.
const recoveryChanged = 154

// record is one entry of the kernel log.
type record struct {
	seq uint64
	// since is the time since boot.
	since time.Duration
	text  string
}

// split parses an entry; ok is false if a program wrote it, not the kernel.
func split(entry string) (r record, ok bool) {
	entry, _, _ = strings.Cut(entry, "\n") // the rest is structured fields
	m := header.FindStringSubmatch(entry)
	if m == nil {
		return record{}, false
	}
	priority, err := strconv.Atoi(m[1])
	seq, noSeq := strconv.ParseUint(m[2], 10, 64)
	us, noTime := strconv.ParseUint(m[3], 10, 53) // a larger value overflows time.Duration
	if errors.Join(err, noSeq, noTime) != nil {
		return record{}, false
	}
	r = record{seq: seq, since: time.Duration(us) * time.Microsecond, text: strings.TrimRight(entry[len(m[0]):], " \t")}
	return r, priority>>3 == 0
}

// parse returns the signal in the text of a record.
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

// device returns an address in NVML's form: four digits of domain, lower case.
func device(address string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(address), ":")
	if len(domain) > 4 && strings.Trim(domain[:len(domain)-4], "0") == "" {
		domain = domain[len(domain)-4:]
	}
	return domain + ":" + rest
}
