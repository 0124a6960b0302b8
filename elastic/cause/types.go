package cause

import "holdfast.dev/holdfast/internal/protocol"

// Code names a cause; a Gang's recoveries, events and metrics use the same word.
type Code string

const (
	// RankKilled: a signal from outside ended the process.
	RankKilled Code = "RankKilled"
	// RankFailed: the script or its native code ended the process.
	RankFailed Code = "RankFailed"
	// RestoreFailed: the script ended the process while it restored its generation's step.
	RestoreFailed Code = "RestoreFailed"
	// PortConflict: the port for rank 0's store was in use.
	PortConflict Code = "PortConflict"
	// PodLost: the pod was replaced, is being shut down, or its agent stopped reporting.
	PodLost Code = "PodLost"
	// PodReplaced: the pod had to leave its node and was replaced; no fault of the script.
	PodReplaced Code = "PodReplaced"
	// JobSuspended: the Job is suspended; no fault of the script.
	JobSuspended Code = "JobSuspended"
	// RanksLost: a container or an agent restarted without its ranks.
	RanksLost Code = "RanksLost"
	// StartInterrupted: the coordinator changed before a pod had started a generation; no failure.
	StartInterrupted Code = "StartInterrupted"
	// ContainerRestarted: a whole container ended, with its agent, and was restarted in its pod.
	ContainerRestarted Code = "ContainerRestarted"
	// LauncherStarted: a command that counted as one rank has started a launcher, whose ranks replace it; no failure, unless it
	// repeats.
	LauncherStarted Code = "LauncherStarted"
	// WentBack: a user rolled the gang back to a step, after which a new branch of training begins; no failure.
	WentBack Code = "WentBack"
	// GangGrows: the ranks were ended at one step, so that the next generation begins with more pods; no failure.
	GangGrows Code = "GangGrows"
	// SizeStruck: the script raised an exception before any step of a generation with fewer pods than all; no failure, and no further
	// generation has as many pods.
	SizeStruck Code = "SizeStruck"
	// CheckRequested: a user requested a node check at once; no failure.
	CheckRequested Code = "CheckRequested"
	// Hang, WaitsOutside, StorageStalls and FabricHang: ranks stood still, as package waiting defines the words, and were ended.
	Hang          Code = "Hang"
	WaitsOutside  Code = "WaitsOutside"
	StorageStalls Code = "StorageStalls"
	FabricHang    Code = "FabricHang"
	// HangTimeout: the gang made no step for the time of holdfast.dev/hang-timeout.
	HangTimeout Code = "HangTimeout"
	// Desync, Deadlock and EndedEarly: the script's bugs by which ranks wait for each other for ever.
	Desync     Code = "Desync"
	Deadlock   Code = "Deadlock"
	EndedEarly Code = "EndedEarly"
)

// Cause is what failed first, with its evidence.
type Cause struct {
	Code     Code
	Rank     int
	Slot     int
	ExitCode int
	Signal   int
	// Message is the evidence for users: the end of the traceback, or one sentence.
	Message string
	// Cascade is the number of further ranks that ended because of this one.
	Cascade int
	// Suspect is the hardware that may have caused it rather than the script.
	Suspect Suspect
	// Accused is the address of the peer that several pods report as lost, if hardware is suspected. It is not recorded.
	Accused string
	// Weak: this rank only lost another one; the first failure is not among the exits.
	Weak bool
	// Restoring: the rank had begun to restore its generation's step and not finished. It is not recorded.
	Restoring bool
	// Raised: the rank's own code raised an exception. It is not recorded.
	Raised bool
	// LostPeer: the rank itself reports that it lost a peer. It is not recorded.
	LostPeer bool
}

// Exit is how one rank's process ended.
type Exit struct {
	Rank int
	Slot int
	protocol.Exit
}
