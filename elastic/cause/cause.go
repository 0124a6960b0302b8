package cause

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// class orders exits by how likely they came first; lower is likelier.
type class int

const (
	// portTaken: the store could not listen; nothing else can have gone wrong before that.
	portTaken class = iota
	// own: the rank reports its own error, or a signal ended it.
	own
	// aborted: SIGABRT without a message. NCCL's watchdog ends a waiting rank so.
	aborted
	// vague: an exit without a message, or a lost connection, which any code may report.
	vague
	// waited: a collective or the store timed out: this rank stopped waiting for another one.
	waited
	// torn: a collective or the store lost its peer: another process ended before this one.
	torn
)

// storeWords are messages of a process that could not open the store's listening socket.
var storeWords = []string{"server socket has failed to listen", "server socket has failed to bind"}

// fabric are words of the libraries that connect ranks: gloo, NCCL, UCC, MPI and PyTorch's store.
var fabric = []string{
	"gloo/transport", "gloo/", "NCCL", "ncclSystemError", "ncclRemoteError", "ProcessGroup", "TCPStore", "c10d", "rendezvous.py",
	"torch.distributed.Dist", "DistBackendError", "DistNetworkError", "DistStoreError", "recvValue failed", "sendBytes failed", "recvBytes",
	"watchdog thread terminated", "torch/distributed/", "monitoredBarrier",
}

var tornWords = []string{
	"connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "socket closed", "remote process exited",
	"failed to recv, got 0 bytes", "remote peer", "connection was likely closed", "ncclremoteerror", "aborted on rank", "unhandled system error",
	"stop_waiting response", "connection aborted", "transport endpoint is not connected", "no route to host",
}

var connectionErrors = []string{"ConnectionError", "ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError"}

var waitedWords = []string{"timed out", "timeout", "deadline exceeded", "wait timeout"}

// First returns the exit that came first and its cause. ok is false if every exit code is 0. The result does not depend on the order of
// exits. A rank's own error outweighs its time, because clocks of nodes differ.
func First(exits []Exit) (c Cause, ok bool) {
	bad := make([]Exit, 0, len(exits))
	for _, e := range exits {
		if e.Code != 0 || e.Signal != 0 {
			bad = append(bad, e)
		}
	}
	if len(bad) == 0 {
		return Cause{}, false
	}
	first := slices.MinFunc(bad, func(a, b Exit) int {
		return cmp.Or(cmp.Compare(classify(a), classify(b)), endedAt(a).Compare(endedAt(b)), cmp.Compare(a.Rank, b.Rank))
	})
	c = describe(first, len(bad)-1)
	if c.Suspect = suspect(first, bad); c.Suspect == SuspectWatchdog {
		c.Weak = true // a rank that waited; the one it waited for is unknown
		if first.Traceback == "" {
			c.Message += ": it waited for other ranks in a collective, and NCCL's watchdog ended it"
		}
	}
	if c.Suspect != "" {
		c.Accused = accused(bad)
	}
	if c.Restoring && c.Code == RankFailed && c.Suspect == "" && !c.LostPeer {
		c.Code = RestoreFailed
	}
	return c, true
}

// killedUnseen is how late the agent may notice a SIGKILL, on a node without free CPU time or where the agent was killed as well. Peers
// notice at once, and report it in the script's own errors.
const killedUnseen = 5 * time.Second

// endedAt returns the earliest time at which a rank may have ended.
func endedAt(e Exit) time.Time {
	if e.Signal == sigkill {
		return e.At.Add(-killedUnseen)
	}
	return e.At
}

func describe(e Exit, cascade int) Cause {
	c := Cause{
		Code:      RankFailed,
		Rank:      e.Rank,
		Slot:      e.Slot,
		ExitCode:  e.Code,
		Signal:    e.Signal,
		Message:   Clean(e.Traceback),
		Cascade:   cascade,
		Weak:      classify(e) > aborted,
		Restoring: e.Restoring,
	}
	c.Raised = e.Signal == 0 && e.Traceback != "" && classify(e) == own
	c.LostPeer = c.Weak && e.Traceback != ""
	switch {
	case classify(e) == portTaken:
		c.Code = PortConflict
	case outside(e.Signal):
		c.Code = RankKilled
		c.Message = fmt.Sprintf("signal %s from outside ended the process", signalName(e.Signal))
	case c.Message == "" && e.Signal != 0:
		c.Message = fmt.Sprintf("signal %s ended the process", signalName(e.Signal))
	case c.Message == "":
		c.Message = fmt.Sprintf("the process ended with exit code %d and wrote no traceback", e.Code)
	}
	return c
}

func classify(e Exit) class {
	text := e.Traceback
	last := rootError(text)
	switch {
	case e.Rank == 0 && containsAny(last, storeWords) && strings.Contains(strings.ToLower(last), "address already in use"):
		return portTaken
	case outside(e.Signal):
		return own
	case text == "" && e.Signal == sigabrt:
		return aborted
	case text == "" && e.Signal != 0:
		return own
	case text == "":
		return silent(e)
	case suspect(e, nil) == SuspectWatchdog:
		return waited
	}
	low := strings.ToLower(last)
	lost, late := containsAny(low, tornWords) || lostByType(last), containsAny(low, waitedWords)
	switch {
	case !lost && !late:
		return own
	case !containsAny(text, fabric):
		return vague
	case late && !lost:
		return waited
	default:
		return torn
	}
}

// lostByType reports whether the exception is one of Python's connection errors, whatever its message.
func lostByType(last string) bool {
	return slices.Contains(connectionErrors, typeOf(last))
}

// typeOf returns the name of an exception's type, without its module.
func typeOf(text string) string {
	kind, _, _ := strings.Cut(text, ":")
	return kind[strings.LastIndex(kind, ".")+1:]
}

// silent classifies an exit without a traceback: only a script chooses an exit code other than 1; code 1 may be an uncaught traceback.
func silent(e Exit) class {
	if e.Code == 1 {
		return vague
	}
	return own
}

// outside reports whether a signal usually comes from outside the process: from an operator, from the kernel's OOM killer, from a pod's
// shutdown.
func outside(signal int) bool {
	switch signal {
	case 1, 2, 9, 15: // HUP, INT, KILL, TERM
		return true
	}
	return false
}

// External reports whether the failure came, or may have come, from outside the script, so that a repetition is no evidence against the
// script.
func (c Cause) External() bool {
	if c.Suspect != "" {
		return true
	}
	switch c.Code {
	case RankKilled, PodLost, PodReplaced, RanksLost, StartInterrupted, ContainerRestarted, PortConflict, LauncherStarted, WentBack,
		GangGrows, CheckRequested, SizeStruck:
		return true
	case RankFailed, RestoreFailed, Desync, Deadlock, EndedEarly:
	case Hang, WaitsOutside, StorageStalls, FabricHang, HangTimeout:
		return true
	}
	return false
}

// Still reports whether ranks stood still and were ended for that, by no known bug of the script: that spends no restart.
func (c Cause) Still() bool {
	switch c.Code {
	case Hang, WaitsOutside, StorageStalls, FabricHang, HangTimeout:
		return true
	default:
		return false
	}
}

// Displaced reports whether pods had to leave their nodes, ranks replaced others or had yet to start, the gang grows, or a user requested
// a rollback or a node check: that is no failure of the script.
func (c Cause) Displaced() bool {
	switch c.Code {
	case PodReplaced, JobSuspended, LauncherStarted, WentBack, GangGrows, CheckRequested, StartInterrupted:
		return true
	default:
		return false
	}
}

// Unexplained reports whether it is unknown why ranks are gone; nil counts too.
func (c *Cause) Unexplained() bool {
	return c == nil || c.Code == RanksLost || c.Code == StartInterrupted || c.Code == ContainerRestarted
}

// Uncounted reports whether such a failure spends no restart, so that its repetition has no consequence.
func (c Cause) Uncounted() bool {
	return c.Code == PortConflict || c.Code == RestoreFailed || c.Code == SizeStruck || c.Displaced() || c.Still()
}

// Refuses reports whether the script itself raised an exception for which no hardware can be blamed, and which the number of ranks may have
// caused.
func (c Cause) Refuses() bool { return c.raises() && !c.Lacks() }

// raises reports whether the script itself raised an exception for which no hardware can be blamed.
func (c Cause) raises() bool {
	return c.Code == RankFailed && c.Raised && c.Suspect == "" && !c.Crashed()
}

func containsAny(s string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
}

func signalName(n int) string {
	if name, ok := signals[n]; ok {
		return fmt.Sprintf("%d (%s)", n, name)
	}
	return fmt.Sprint(n)
}

var signals = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}
