package cause

import "holdfast.dev/holdfast/internal/protocol"

// Code names a cause; a Gang's recoveries, events and metrics carry the same word.
type Code string

const (
	// RankKilled: a signal from outside ended the process.
	RankKilled Code = "RankKilled"
	// RankFailed: the script or its native code ended the process.
	RankFailed Code = "RankFailed"
	// RestoreFailed: the script ended the process as it brought the step back from which its generation starts.
	RestoreFailed Code = "RestoreFailed"
	// PortConflict: the port for rank 0's store was taken meanwhile.
	PortConflict Code = "PortConflict"
	// PodLost: the pod was replaced, is leaving or fell silent.
	PodLost Code = "PodLost"
	// PodReplaced: the pod had to leave its node and was replaced; no fault of the script.
	PodReplaced Code = "PodReplaced"
	// JobSuspended: the Job is suspended; no fault of the script.
	JobSuspended Code = "JobSuspended"
	// RanksLost: a container or an agent came back without the ranks that it had run.
	RanksLost Code = "RanksLost"
	// StartInterrupted: the coordinator changed before a pod had started a generation; no failure.
	StartInterrupted Code = "StartInterrupted"
	// ContainerRestarted: a container ended whole, agent and all, and was started again in its pod.
	ContainerRestarted Code = "ContainerRestarted"
	// LauncherStarted: a command that counted as one rank has started a launcher, whose ranks take its place; no failure, unless it comes
	// again and again.
	LauncherStarted Code = "LauncherStarted"
	// WentBack: people had the gang go back to a step, from which a new branch of training begins; no failure.
	WentBack Code = "WentBack"
)

// Cause is what failed first, with its evidence.
type Cause struct {
	Code     Code
	Rank     int
	Slot     int
	ExitCode int
	Signal   int
	// Message is the evidence for people: the end of the traceback, or one sentence.
	Message string
	// Cascade counts further ranks that ended because of this one.
	Cascade int
	// Suspect is the hardware that may be to blame rather than the script.
	Suspect Suspect
	// Accused is the address of the peer that several pods say they lost, where hardware is suspected. It is not recorded.
	Accused string
	// Weak says that this rank, too, only lost another one: what came first is not among the exits.
	Weak bool
	// Restoring says that the rank had begun to restore its generation's step and had not done it. It is not recorded.
	Restoring bool
	// LostPeer says that the rank itself says so. It is not recorded.
	LostPeer bool
}

// Exit is how one rank's process ended.
type Exit struct {
	Rank int
	Slot int
	protocol.Exit
}
