package kmsg

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

const address = `([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?`

var (
	header    = regexp.MustCompile(`^(\d+),(\d+),(\d+),[^;]*;`)
	xid       = regexp.MustCompile(`NVRM: Xid \(PCI:` + address + `\): (\d+)(?:, *(.*))?`)
	sxid      = regexp.MustCompile(`SXid \(PCI:` + address + `\): (\d+)(?:, *(.*))?`)
	recovery  = regexp.MustCompile(`recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x([0-9a-fA-F]+)`)
	anAddress = regexp.MustCompile(address)
)

// recoveryChanged is the Xid by which the driver tells its recovery action.
const recoveryChanged = 154

// nearby is how many records of the driver later "fallen off the bus" may follow the address it is about.
const nearby = 4

// record is one entry of the kernel log.
type record struct {
	seq uint64
	// since is the time since boot; negative where the entry does not tell.
	since time.Duration
	text  string
}

// split takes an entry apart. One without the kernel's header has neither number nor time.
func split(entry string) record {
	r := record{since: -1, text: entry}
	if m := header.FindStringSubmatch(entry); m != nil {
		if priority, _ := strconv.Atoi(m[1]); priority>>3 != 0 {
			return record{since: -1} // a program's word: only the kernel's own counts
		}
		r.seq, _ = strconv.ParseUint(m[2], 10, 64)
		us, _ := strconv.ParseInt(m[3], 10, 64)
		r.since, r.text = time.Duration(us)*time.Microsecond, entry[len(m[0]):]
	}
	r.text, _, _ = strings.Cut(r.text, "\n") // what follows are fields for machines
	return r
}

// parser finds signals in the text of records, in their order: some tell their story over several.
type parser struct {
	// about is the device that the driver named last, age how many of its records ago.
	about string
	age   int
}

func (p *parser) parse(text string) (nodehealth.Signal, bool) {
	sig := nodehealth.Signal{Source: nodehealth.Kmsg, Text: strings.TrimSpace(text)}
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
	if !strings.Contains(text, "NVRM:") {
		return sig, false
	}
	p.age++
	if m := anAddress.FindStringSubmatch(text); m != nil {
		p.about, p.age = device(m[1]), 0
	}
	if p.about != "" && p.age <= nearby && strings.Contains(strings.ToLower(text), "fallen off the bus") {
		sig.Kind, sig.Device = nodehealth.OffBus, p.about
		return sig, true
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
