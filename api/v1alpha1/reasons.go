package v1alpha1

// Condition types of a Gang.
const (
	// ConditionPlaced: every member is bound to a node.
	ConditionPlaced = "Placed"
	// ConditionRunning: all ranks of the newest generation run.
	ConditionRunning = "Running"
	// ConditionStateInMemory: state is kept in memory; False says why not.
	ConditionStateInMemory = "StateInMemory"
	// ConditionStandbysReady: every rank has a warm standby.
	ConditionStandbysReady = "StandbysReady"
	// ConditionGoodputKnown: what recoveries cost is known; False says why no goodput is given.
	ConditionGoodputKnown = "GoodputKnown"
	// ConditionUnprotected: in some pod something runs that was not started under the agent, so that nothing restarts it.
	ConditionUnprotected = "Unprotected"
	// ConditionLauncherRestarts: a failure restarts the whole command of each pod, launcher and all.
	ConditionLauncherRestarts = "LauncherRestarts"
	// ConditionComplete: the job is over, and all ranks ended with exit code 0.
	ConditionComplete = "Complete"
	// ConditionFailed: the job was given up, or ended badly.
	ConditionFailed = "Failed"
)

// Reasons. One word per thing: condition reason, event reason, metric label and runbook share it.
const (
	ReasonPlaced            = "Placed"
	ReasonWaitingForMembers = "WaitingForMembers"
	ReasonInsufficientNodes = "InsufficientNodes"
	ReasonMemberLost        = "MemberLost"
	// ReasonInvalidTopology: the job names a topology level that the cluster does not have, or a value that makes no sense.
	ReasonInvalidTopology = "InvalidTopology"
	// ReasonUnsupported: the pods ask for something that is not counted for a gang.
	ReasonUnsupported = "Unsupported"
	// ReasonVolcanoQueued and ReasonVolcanoUnschedulable: Volcano, which places the pods, has not let their PodGroup into its queue, or finds
	// no nodes for it. ReasonVolcanoBelowMinimum: a pod takes the place of one that is gone, and Volcano has no node for it yet.
	// ReasonVolcanoNoGroup: there is no PodGroup.
	ReasonVolcanoQueued        = "VolcanoQueued"
	ReasonVolcanoUnschedulable = "VolcanoUnschedulable"
	ReasonVolcanoBelowMinimum  = "VolcanoBelowMinimum"
	ReasonVolcanoNoGroup       = "VolcanoNoGroup"
	// ReasonRolledBack: a pod was deleted because the rest of its gang got no nodes.
	ReasonRolledBack = "RolledBack"
	// ReasonSettingsIgnored: a group has a setting that this scheduler does not support.
	ReasonSettingsIgnored = "SettingsIgnored"

	// ReasonTooManyGangs: the Job's namespace has as many Gangs as it may have.
	ReasonTooManyGangs = "TooManyGangs"

	ReasonStarting   = "Starting"
	ReasonRunning    = "Running"
	ReasonRecovering = "Recovering"
	ReasonRecovered  = "Recovered"

	// ReasonPodReplacementPending: a pod must be replaced, because of its node or because it is being deleted.
	ReasonPodReplacementPending = "PodReplacementPending"
	// ReasonDrained and ReasonNotDrained: whether what a pod to be replaced had in memory was copied out.
	ReasonDrained    = "Drained"
	ReasonNotDrained = "NotDrained"
	// ReasonPodReplaced: a new pod has taken the place of a pod that is to be replaced.
	ReasonPodReplaced = "PodReplaced"
	// ReasonEvictionRefused: a disruption budget of the user's keeps a pod that was replaced; it is asked again.
	ReasonEvictionRefused = "EvictionRefused"

	// ReasonStepGivenUp: ranks failed to restore a step, and training continues from an older one or from the beginning.
	ReasonStepGivenUp = "StepGivenUp"
	// ReasonStepUnreadable: a step lies in storage and cannot be read, and there is no other that all ranks can have.
	ReasonStepUnreadable = "StepUnreadable"

	// ReasonWouldRestart and ReasonWouldReplace: what would have been done about a failure of an observed job.
	ReasonWouldRestart = "WouldRestart"
	ReasonWouldReplace = "WouldReplace"

	ReasonSizeAnnotated = "SizeAnnotated"
	ReasonNoStateSize   = "NoStateSize"

	ReasonStandbysReady   = "StandbysReady"
	ReasonStandbysWarming = "StandbysWarming"
	ReasonStandbysOff     = "StandbysOff"

	ReasonUnprotected = "Unprotected"
	// ReasonProtected: nothing is known to run that the agent did not start.
	ReasonProtected = "Protected"
	// ReasonWholeCommand: the command starts no launcher that Holdfast supports, so that the command is one rank.
	ReasonWholeCommand = "WholeCommand"
	// ReasonRanksRestart: a failure restarts ranks alone.
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
	// CauseRestoreFailed: the script ended as it brought back the step from which its generation starts.
	CauseRestoreFailed = "RestoreFailed"
	// CausePodReplaced: a pod had to leave its node and was replaced; the message begins with the node's cause.
	CausePodReplaced = "PodReplaced"
	// CauseRanksLost: a container or an agent came back without the ranks that it had run.
	CauseRanksLost = "RanksLost"
	// CauseContainerRestarted: a container ended whole, agent and all, and was started again in its pod.
	CauseContainerRestarted = "ContainerRestarted"
	// CauseLauncherStarted: a command that counted as one rank has started a launcher, whose ranks take its place.
	CauseLauncherStarted = "LauncherStarted"
	// CauseStartInterrupted: the controller changed before a pod had started a generation.
	CauseStartInterrupted = "StartInterrupted"
	// CauseWentBack: a user rolled the job back to an earlier step, from which a new branch of training begins.
	CauseWentBack = "WentBack"
)
