package cause

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Suspect is the hardware that may have caused a failure; "": none, the cause is the script or outside.
type Suspect string

// The suspected hardware. The script's own failures are never suspect, even if these messages follow: a device-side assert, an illegal
// memory access, CUDA out of memory, wrong use of NCCL.
const (
	// SuspectMemory: a GPU reports an uncorrectable error of its memory or its links.
	SuspectMemory Suspect = "UncorrectableError"
	// SuspectRemote: NCCL lost a peer, or the network to it.
	SuspectRemote Suspect = "NCCLRemoteError"
	// SuspectSystem: a system call or a device failed under NCCL.
	SuspectSystem Suspect = "NCCLSystemError"
	// SuspectWatchdog: a collective did not end in time, and NCCL's watchdog ended the process.
	SuspectWatchdog Suspect = "NCCLWatchdog"
	// SuspectInstruction: SIGILL. A program that was built for another processor ends with it on every node.
	SuspectInstruction Suspect = "IllegalInstruction"
	// SuspectBus: SIGBUS. A full /dev/shm causes it too.
	SuspectBus Suspect = "BusError"
	// SuspectTransfer: the state that a rank got from another one does not have the checksum with which that one's agent sealed it.
	SuspectTransfer Suspect = "StateTransfer"
	// SuspectPod: a rank of a pod that never made a step lacks a module, a device or the like, and other pods have made steps.
	SuspectPod Suspect = "PodLacks"
	// SuspectHang: a rank stood still inside torch, a driver or a device, or its device did not begin an operation that all others began.
	SuspectHang Suspect = "Hang"
)

const sigill, sigabrt, sigbus, sigfpe, sigkill, sigsegv = 4, 6, 7, 8, 9, 11

// ownWords are messages of the script's own failures, whatever NCCL or its watchdog report after them.
var ownWords = []string{"device-side assert triggered", "illegal memory access", "out of memory", "ncclinvalidusage", "invalid usage", "ncclinvalidargument", "invalid argument"}

// watchdogWords are PyTorch's messages when the watchdog of a process group gives up.
var watchdogWords = []string{"watchdog caught collective operation timeout", "watchdog thread terminated with exception", "we are taking the entire process down", "collective operation timeout: worknccl"}

// transferWords is in the client's error about a transfer (_donor.py).
const transferWords = "do not have the checksum with which its agent sealed them"

// suspects lists messages by suspect, the most specific first.
var suspects = []struct {
	by    Suspect
	words []string
}{
	{SuspectMemory, []string{"uncorrectable ecc", "eccuncorrectable", "ecc_uncorrectable", "uncorrectable nvlink"}},
	{SuspectRemote, []string{"ncclremoteerror", "remote process exited or there was a network error"}},
	{SuspectSystem, []string{"ncclsystemerror", "unhandled system error"}},
	{SuspectWatchdog, watchdogWords},
	{SuspectTransfer, []string{transferWords}},
}

// suspect returns what an exit makes suspect. For an aborted process without a message, its peers' messages may show that the watchdog
// ended it; if several aborted so at once, the watchdog is the only known cause.
func suspect(e Exit, all []Exit) Suspect {
	text := strings.ToLower(Clean(e.Traceback))
	if containsAny(text, ownWords) {
		return ""
	}
	for _, s := range suspects {
		if containsAny(text, s.words) {
			return s.by
		}
	}
	switch {
	case text != "":
	case e.Signal == sigill:
		return SuspectInstruction
	case e.Signal == sigbus:
		return SuspectBus
	case e.Signal == sigabrt && byWatchdog(all):
		return SuspectWatchdog
	}
	return ""
}

// byWatchdog reports whether NCCL's watchdog ended the ranks that aborted without a message.
func byWatchdog(all []Exit) bool {
	silent := 0
	for _, e := range all {
		if containsAny(strings.ToLower(e.Traceback), watchdogWords) {
			return true
		}
		if e.Signal == sigabrt && e.Traceback == "" {
			silent++
		}
	}
	return silent > 1
}

// peerAddress matches NCCL's name for a lost peer: its address, perhaps with an interface, and the port in angle brackets.
var peerAddress = regexp.MustCompile(`(?i)(?:recv from|send to|connect to|completion from peer)\s+\[?((?:\d{1,3}\.){3}\d{1,3}|[0-9a-f]*:[0-9a-f:]*:[0-9a-f:.]*)`)

// accusers is how many pods must name a peer: one alone may have lost its own network.
const accusers = 2

// accused returns the address of the peer that most pods report as lost; "": too few do, or they disagree.
func accused(all []Exit) string {
	by := map[string]map[int]bool{}
	for _, e := range all {
		for _, m := range peerAddress.FindAllStringSubmatch(e.Traceback, -1) {
			ip, err := netip.ParseAddr(m[1])
			if err != nil {
				continue
			}
			peer := ip.Unmap().String() // the form in which pods report their own
			if by[peer] == nil {
				by[peer] = map[int]bool{}
			}
			by[peer][e.Slot] = true
		}
	}
	address, most := "", accusers-1
	for a, slots := range by {
		switch {
		case len(slots) > most:
			address, most = a, len(slots)
		case len(slots) == most:
			address = ""
		}
	}
	return address
}

// lackTypes are exceptions that say what the image, the node or the script lacks, with any number of ranks. A file that does not exist may
// depend on that number: a script may keep one for each rank.
var lackTypes = []string{
	"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "OSError", "PermissionError", "NotADirectoryError",
	"IsADirectoryError", "FileExistsError", "BlockingIOError", "gaierror", "SSLError", "SSLCertVerificationError", "URLError", "HTTPError",
}

// lackWords are messages that mean the same.
var lackWords = []string{"no cuda gpus are available", "no hip gpus are available", "found no nvidia driver", "driver version is insufficient"}

// Lacks reports whether the script itself raised an exception about something that is missing where the rank ran, whatever the number of
// ranks.
func (c Cause) Lacks() bool {
	text := rootError(c.Message)
	return c.raises() && (slices.Contains(lackTypes, typeOf(text)) || containsAny(strings.ToLower(text), lackWords))
}

// crashWords are messages of CUDA, NCCL and their libraries, whose cause may be a device or a bug.
var crashWords = []string{"cuda error", "cudnn error", "cublas error", "nccl error", "ncclinternalerror", "ncclunhandledcudaerror", "hip error"}

// Crashed reports whether a failure is none that the script reports in its own words: native code crashed, or CUDA or NCCL failed. A device
// may be at fault as well as the script.
func (c Cause) Crashed() bool {
	text := strings.ToLower(rootError(c.Message))
	if c.Code != RankFailed || containsAny(text, ownWords) {
		return false
	}
	switch c.Signal {
	case sigill, sigabrt, sigbus, sigfpe, sigsegv:
		return true
	}
	return containsAny(text, crashWords)
}
