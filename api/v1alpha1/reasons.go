package v1alpha1

// Condition types of a Gang.
const (
	// ConditionPlaced: every member is bound to a node.
	ConditionPlaced = "Placed"
	// ConditionRunning: all ranks of the newest generation run.
	ConditionRunning = "Running"
	// ConditionProgressing: ranks make steps, or work between two steps; False: they stand still. Unknown: too little is known.
	ConditionProgressing = "Progressing"
	// ConditionBusy: ranks make no step for longer than their steps explain, and work.
	ConditionBusy = "Busy"
	// ConditionStateInMemory: state is kept in memory; False: the reason and message explain why not.
	ConditionStateInMemory = "StateInMemory"
	// ConditionStandbysReady: every rank has a warm standby.
	ConditionStandbysReady = "StandbysReady"
	// ConditionGoodputKnown: the cost of all recoveries is known; False: the goodput is unknown.
	ConditionGoodputKnown = "GoodputKnown"
	// ConditionUnprotected: in some pod runs a process that the agent did not start and does not restart.
	ConditionUnprotected = "Unprotected"
	// ConditionLauncherRestarts: a failure restarts the whole command of each pod, with its launcher.
	ConditionLauncherRestarts = "LauncherRestarts"
	// ConditionComplete: the job is over, and all ranks ended with exit code 0.
	ConditionComplete = "Complete"
	// ConditionFailed: the job was given up, or failed.
	ConditionFailed = "Failed"
)

// Reasons. One word per thing: condition reason, event reason, metric label and runbook share it.
const (
	ReasonPlaced            = "Placed"
	ReasonWaitingForMembers = "WaitingForMembers"
	ReasonInsufficientNodes = "InsufficientNodes"
	ReasonMemberLost        = "MemberLost"
	// ReasonInvalidTopology: the job names a topology level that the cluster does not have, or an invalid value.
	ReasonInvalidTopology = "InvalidTopology"
	// ReasonUnsupported: the pods request a resource that is not counted for a gang.
	ReasonUnsupported = "Unsupported"
	// ReasonVolcanoQueued and ReasonVolcanoUnschedulable: Volcano, which places the pods, has not let their PodGroup into its queue, or finds
	// no nodes for it. ReasonVolcanoBelowMinimum: a pod takes the place of one that is gone, and Volcano has no node for it yet.
	// ReasonVolcanoNoGroup: there is no PodGroup.
	ReasonVolcanoQueued        = "VolcanoQueued"
	ReasonVolcanoUnschedulable = "VolcanoUnschedulable"
	ReasonVolcanoBelowMinimum  = "VolcanoBelowMinimum"
	ReasonVolcanoNoGroup       = "VolcanoNoGroup"
	// ReasonRolledBack: a pod was deleted because the other pods of its gang got no nodes.
	ReasonRolledBack = "RolledBack"
	// ReasonSettingsIgnored: a group has a setting that this scheduler does not support.
	ReasonSettingsIgnored = "SettingsIgnored"

	// ReasonTooManyGangs: the Job's namespace has reached its limit of Gangs.
	ReasonTooManyGangs = "TooManyGangs"
	// ReasonGangNameTaken: another job of the same name, of another kind, has the Gang.
	ReasonGangNameTaken = "GangNameTaken"

	ReasonStarting   = "Starting"
	ReasonRunning    = "Running"
	ReasonRecovering = "Recovering"
	ReasonRecovered  = "Recovered"

	// ReasonPodReplacementPending: a pod must be replaced, because of its node or because it is being deleted.
	ReasonPodReplacementPending = "PodReplacementPending"
	// ReasonDrained and ReasonNotDrained: whether the state in a pod to be replaced was copied to storage.
	ReasonDrained    = "Drained"
	ReasonNotDrained = "NotDrained"
	// ReasonRunsWithFewer: the gang goes on with fewer pods than it has slots, and why; or it goes on with all again.
	ReasonRunsWithFewer = "RunsWithFewer"
	// ReasonStandsStill: the gang makes no step, and whom its ranks wait for; or it makes steps again.
	ReasonStandsStill = "StandsStill"
	// ReasonNodeCheckFailed: a node check named a pod, which is replaced. ReasonNodeCheck: the result of a node check.
	ReasonNodeCheckFailed = "NodeCheckFailed"
	ReasonNodeCheck       = "NodeCheck"
	// ReasonNoHealthyNode: a pod in place of one that a node check named finds no node, or none is left to try.
	ReasonNoHealthyNode = "NoHealthyNode"
	// ReasonNodeSlow: a node check found a pod slow.
	ReasonNodeSlow = "NodeSlow"
	// ReasonBusy: a rank works while the others wait for it, for example on an evaluation or a save.
	ReasonBusy = "Busy"
	// ReasonStopped: a signal or a debugger stopped a rank.
	ReasonStopped = "Stopped"
	// ReasonUnexplained: the gang makes no step, and too little is known of its ranks to say why.
	ReasonUnexplained = "Unexplained"
	// ReasonPodReplaced: a new pod has taken the slot of a pod to be replaced.
	ReasonPodReplaced = "PodReplaced"
	// ReasonEvictionRefused: a disruption budget refuses the eviction of a replaced pod; the eviction is retried.
	ReasonEvictionRefused = "EvictionRefused"
	// ReasonEndedByNode: the kubelet of a pod did not admit it, or ended it, because of its node; another pod takes its place.
	ReasonEndedByNode = "EndedByNode"

	// ReasonStepGivenUp: ranks failed to restore a step, and training continues from an older one or from the beginning.
	ReasonStepGivenUp = "StepGivenUp"
	// ReasonStepUnreadable: a step in storage cannot be read, and no other step is available to all ranks.
	ReasonStepUnreadable = "StepUnreadable"

	// ReasonWouldRestart and ReasonWouldReplace: what Holdfast would have done about a failure of an observed job.
	ReasonWouldRestart = "WouldRestart"
	ReasonWouldReplace = "WouldReplace"

	ReasonSizeAnnotated = "SizeAnnotated"
	ReasonNoStateSize   = "NoStateSize"

	ReasonStandbysReady   = "StandbysReady"
	ReasonStandbysWarming = "StandbysWarming"
	ReasonStandbysOff     = "StandbysOff"

	ReasonUnprotected = "Unprotected"
	// ReasonProtected: the agent started all processes that are known.
	ReasonProtected = "Protected"
	// ReasonWholeCommand: the command starts no launcher that Holdfast supports, so the whole command is one rank.
	ReasonWholeCommand = "WholeCommand"
	// ReasonRanksRestart: a failure restarts only ranks.
	ReasonRanksRestart = "RanksRestart"

	ReasonResumePointKnown = "ResumePointKnown"
	// ReasonResumePointUnknown: the step at which training resumed after a recovery is unknown.
	ReasonResumePointUnknown = "ResumePointUnknown"

	ReasonFinished         = "Finished"
	ReasonSameFailureTwice = "SameFailureTwice"
	ReasonNoProgress       = "NoProgress"
	ReasonRefused          = "LauncherRefused"
	ReasonMemberEnded      = "MemberEnded"
	ReasonMaxRestarts      = "MaxRestarts"
)

// Codes of Cause.
const (
	CauseRankKilled   = "RankKilled"
	CauseRankFailed   = "RankFailed"
	CausePortConflict = "PortConflict"
	CausePodLost      = "PodLost"
	// CauseRestoreFailed: the script ended while it restored the step from which its generation starts.
	CauseRestoreFailed = "RestoreFailed"
	// CausePodReplaced: a pod was replaced because of its node or its deletion; the message begins with the cause of that.
	CausePodReplaced = "PodReplaced"
	// CauseRanksLost: a container or an agent restarted without the ranks that it had run.
	CauseRanksLost = "RanksLost"
	// CauseContainerRestarted: a container ended with its agent and was started again in its pod.
	CauseContainerRestarted = "ContainerRestarted"
	// CauseLauncherStarted: a command that counted as one rank has started a launcher, whose ranks take its place.
	CauseLauncherStarted = "LauncherStarted"
	// CauseStartInterrupted: the coordinator restarted before a pod had started a generation.
	CauseStartInterrupted = "StartInterrupted"
	// CauseWentBack: a user rolled the job back to an earlier step, from which a new branch of training begins.
	CauseWentBack = "WentBack"
	// CauseGangGrows: ranks were ended at one step, so that the next generation begins with more pods.
	CauseGangGrows = "GangGrows"
	// CauseSizeStruck: the script raised an exception before any step of a generation with fewer pods than all (RunSizes.Struck).
	CauseSizeStruck = "SizeStruck"
	// CauseCheckRequested: a user requested a node check at once.
	CauseCheckRequested = "CheckRequested"
	// CauseHang: a rank stood still inside torch, a driver or a device. CauseWaitsOutside: it waited for something outside the gang.
	// CauseStorageStalls: ranks on several nodes waited for a file system. CauseFabricHang: an operation that all ranks had begun did not end.
	CauseHang          = "Hang"
	CauseWaitsOutside  = "WaitsOutside"
	CauseStorageStalls = "StorageStalls"
	CauseFabricHang    = "FabricHang"
	// CauseHangTimeout: the gang made no step for the time of holdfast.dev/hang-timeout.
	CauseHangTimeout = "HangTimeout"
	// CauseDesync: ranks called different operations at one point. CauseDeadlock: they waited for each other in a circle. CauseEndedEarly: a
	// rank ended with exit code 0, and others waited for it.
	CauseDesync     = "Desync"
	CauseDeadlock   = "Deadlock"
	CauseEndedEarly = "EndedEarly"
)
