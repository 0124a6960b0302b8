package v1alpha1

// Prefix begins each label and annotation key of Holdfast.
const Prefix = "holdfast.dev/"

// Annotations that users write, on a job or on its pod template. Where both have a key, the pod template's value counts. Admission refuses
// a key under Prefix that is not listed in this file.
const (
	// AnnotationEnabled opts a job in ("true") or explicitly out ("false").
	AnnotationEnabled = Prefix + "enabled"
	// AnnotationStateSize is the size of the state that one rank keeps in memory, a quantity such as
	// "40Gi". Each rank's arena holds AnnotationSlots slots of this size. Absent: state in memory is off.
	AnnotationStateSize = Prefix + "state-size"
	// AnnotationSlots is the number of slots in a rank's arena: "3" (default), or "2", which takes a third less memory and makes saves wait
	// for the other ranks. Needs AnnotationStateSize.
	AnnotationSlots = Prefix + "slots"
	// AnnotationStandbys is "auto" (default: one warm standby process per rank where memory allows) or "off".
	AnnotationStandbys = Prefix + "standbys"
	// AnnotationStandbyMemory is the memory added to the container for the standbys of a pod, a quantity;
	// default DefaultStandbyMemory.
	AnnotationStandbyMemory = Prefix + "standby-memory"
	// AnnotationStandbySkipModules lists Python modules, separated by commas, that standbys do not import ahead.
	AnnotationStandbySkipModules = Prefix + "standby-skip-modules"
	// AnnotationRanks is the number of ranks (processes) per pod for which memory is counted; default: the number in the container's
	// launcher command, else its number of GPUs, else 1.
	AnnotationRanks = Prefix + "ranks"
	// AnnotationMaxRestarts is the number of restarts after which a failure ends the job; default: the launcher's --max-restarts, else no
	// limit while there is progress between restarts.
	AnnotationMaxRestarts = Prefix + "max-restarts"
	// AnnotationHang is HangAct (default), HangReport or HangOff.
	AnnotationHang = Prefix + "hang"
	// AnnotationHangTimeout is the longest time without a step after which ranks are ended whatever they do, a duration such as "30m".
	// Absent: ranks that compute, or of which too little is known, are not ended. Needs HangAct.
	AnnotationHangTimeout = Prefix + "hang-timeout"
	// AnnotationNodeCheck is NodeCheckAuto, NodeCheckAlways or NodeCheckOff (default).
	AnnotationNodeCheck = Prefix + "node-check"
	// AnnotationMinPods is the least number of pods with which the job goes on when pods are lost; absent: all are needed.
	AnnotationMinPods = Prefix + "min-pods"
	// AnnotationPodsUnit is a number of pods: the job goes on with multiples of it, in whole blocks of so many consecutive pods; absent:
	// AnnotationBlockSize. Needs AnnotationMinPods.
	AnnotationPodsUnit = Prefix + "pods-unit"
	// AnnotationShrinkAfter is how long a job with AnnotationMinPods waits for a pod whose coming cannot be foretold, a duration such as "30s".
	AnnotationShrinkAfter = Prefix + "shrink-after"
	// AnnotationSlowNodes is SlowReport (default) or SlowExclude.
	AnnotationSlowNodes = Prefix + "slow-nodes"
	// AnnotationGrow is GrowAuto (default), GrowWithRestart or GrowOff. Needs AnnotationMinPods.
	AnnotationGrow = Prefix + "grow"
	// AnnotationRetrySizes is a number that a user increases to have struck sizes tried again (RunSizes.Struck). It is on the Job itself and
	// may change at any time.
	AnnotationRetrySizes = Prefix + "retry-sizes"
	// AnnotationShmSize is the size of the memory volume that the webhook mounts at /dev/shm of a training container without a mount there,
	// a quantity, or "off"; default: a share of its memory limit.
	AnnotationShmSize = Prefix + "shm-size"
	// AnnotationContainer names the container that trains; default: the one that webhook.chooseContainer selects.
	AnnotationContainer = Prefix + "container"
	// AnnotationStorageClaim names a PersistentVolumeClaim in the job's namespace, to which agents copy steps while training runs. Absent:
	// state survives its process, but not its pod. Needs AnnotationStateSize.
	AnnotationStorageClaim = Prefix + "storage-claim"
	// AnnotationStorageInterval is how often a step is copied to storage, a duration; default DefaultStorageInterval.
	AnnotationStorageInterval = Prefix + "storage-interval"
	// AnnotationKeepCheckpoints is the number of newest steps that stay in storage, from MinKept (default) to MaxKept.
	AnnotationKeepCheckpoints = Prefix + "keep-checkpoints"
	// AnnotationKeepCheckpointEvery is a duration: one more step per interval of it stays in storage, the newest MaxKeptEvery of them.
	AnnotationKeepCheckpointEvery = Prefix + "keep-checkpoint-every"
	// AnnotationPinnedCheckpoints lists steps that stay in storage until they leave this list, as STEP@GENERATION, separated by commas; at
	// most MaxPins. It is on the Job itself and may change at any time.
	AnnotationPinnedCheckpoints = Prefix + "pinned-checkpoints"
	// AnnotationPinWish numbers the value of AnnotationPinnedCheckpoints: kubectl holdfast ckpt increases it with each change and finds the
	// coordinator's answer by it.
	AnnotationPinWish = Prefix + "pin-wish"
	// AnnotationCheckWish numbers a user's requests of a node check before the next generation; CheckNow after it, with a comma between,
	// has the ranks restarted for it. kubectl holdfast check increases the number and finds the coordinator's answer by it.
	AnnotationCheckWish = Prefix + "check-wish"
	// AnnotationMode is ModeAct (default) or ModeObserve.
	AnnotationMode = Prefix + "mode"

	// AnnotationRunTime is the longest that the job's pods run once they have started, a duration such as "36h". A job with it may use room
	// that is reserved for another gang (backfill). Absent: the pod's activeDeadlineSeconds.
	AnnotationRunTime = Prefix + "run-time"

	// AnnotationMasterPort is the port, or a range such as "29500-29531", on which rank 0's store listens. Absent: any free port.
	AnnotationMasterPort = Prefix + "master-port"

	// AnnotationTopologyRequired names a topology level, by name ("rack") or node label: all pods of the job are placed in one domain of
	// that level, or not at all.
	AnnotationTopologyRequired = Prefix + "topology-required"
	// AnnotationTopologyPreferred names the narrowest level down to which pods are packed closely; default: the node.
	AnnotationTopologyPreferred = Prefix + "topology-preferred"
	// AnnotationSliceLevel names the level whose domains get equal numbers of pods (slices); default where AnnotationSliceSize or
	// AnnotationBlockSize is set: the narrowest level.
	AnnotationSliceLevel = Prefix + "slice-level"
	// AnnotationSliceSize is the number of pods of a slice; default: as many as fit, so that slices are few.
	AnnotationSliceSize = Prefix + "slice-size"
	// AnnotationSliceShape is SliceEven (default) or SliceUneven.
	AnnotationSliceShape = Prefix + "slice-shape"
	// AnnotationBlockSize is a number of consecutive pods that share a domain; slices consist of whole blocks.
	AnnotationBlockSize = Prefix + "block-size"
	// AnnotationSpares is the number of nodes that stay free in each used domain, for replacements of pods.
	AnnotationSpares = Prefix + "spares"
	// AnnotationProvisioningClass is the class of a ProvisioningRequest. While a gang is refused for
	// lack of room, Holdfast creates a request for its pods that lack room. Absent: none is created.
	AnnotationProvisioningClass = Prefix + "provisioning-class"
	// AnnotationWholeNodes ("true" or "false", the default) requests nodes without other jobs' pods.
	AnnotationWholeNodes = Prefix + "whole-nodes"
)

// Values of AnnotationSliceShape.
const (
	// SliceEven: each used domain gets one slice, and all slices have the same size.
	SliceEven = "even"
	// SliceUneven: domains may get different numbers of whole slices or blocks.
	SliceUneven = "uneven"
)

// MaxPins is how many steps of a job may be pinned: each takes space in the claim and an entry in the Gang.
const MaxPins = 16

// MinKept, MaxKept and MaxKeptEvery bound AnnotationKeepCheckpoints and AnnotationKeepCheckpointEvery: each step takes space in the claim
// and an entry in the Gang.
const (
	MinKept      = 2
	MaxKept      = 32
	MaxKeptEvery = 48
)

// DefaultStorageInterval is the default of AnnotationStorageInterval.
const DefaultStorageInterval = "1m"

// Values of AnnotationMode.
const (
	// ModeAct: Holdfast places, restarts and replaces.
	ModeAct = "act"
	// ModeObserve: Holdfast changes no pod. It records what it would have done about failures and the time that this would have saved.
	ModeObserve = "observe"
)

// Values of AnnotationHang.
const (
	// HangAct: what stands still is reported, and its ranks are restarted where the verdict says that they stand still.
	HangAct = "act"
	// HangReport: what stands still is reported.
	HangReport = "report"
	// HangOff: no rank is looked at.
	HangOff = "off"
)

// CheckNow is the word of AnnotationCheckWish that has ranks restarted.
const CheckNow = "now"

// Values of AnnotationSlowNodes, and of GangSpec.SlowNodes.
const (
	// SlowReport: a node that a node check finds slow is reported.
	SlowReport = "report"
	// SlowExclude: its pod is also replaced, and the node excluded.
	SlowExclude = "exclude"
)

// Values of AnnotationGrow, and of GangSpec.Grow. Pods join any restart that has another reason.
const (
	// GrowAuto: ranks are also restarted for pods that can join at a step at which all ranks stay.
	GrowAuto = "auto"
	// GrowWithRestart: ranks are also restarted for pods where no rank holds a state in memory.
	GrowWithRestart = "with-restart"
	// GrowOff: ranks are not restarted for pods.
	GrowOff = "off"
)

// Values of AnnotationNodeCheck, and of GangSpec.NodeCheck.
const (
	// NodeCheckAuto: before the first generation if two pods or more request devices and not every node passed a check within 24 h, and
	// after failures that hardware may have caused.
	NodeCheckAuto = "auto"
	// NodeCheckAlways: before the first generation and after failures that hardware may have caused.
	NodeCheckAlways = "always"
	// NodeCheckSuspects: after failures that hardware may have caused. Only in GangSpec.
	NodeCheckSuspects = "suspects"
	// NodeCheckOff: never.
	NodeCheckOff = "off"
)

// DefaultStandbyMemory is the default of AnnotationStandbyMemory.
const DefaultStandbyMemory = "512Mi"

// Keys that the webhook writes on pod templates and pods. It refuses a user's values for them on jobs, and on pods unless they equal the
// values that it would write.
const (
	// LabelGang is the name of the Gang that the pod belongs to, in the pod's namespace.
	LabelGang = Prefix + "gang"
	// AnnotationGangSize is the number of pods that are placed together.
	AnnotationGangSize = Prefix + "gang-size"
	// AnnotationGangMin is the least number of pods with which the gang goes on; absent: all are needed.
	AnnotationGangMin = Prefix + "gang-min"
	// AnnotationGangUnit is a number of pods: the gang goes on with whole blocks of so many consecutive slots; absent: 1.
	AnnotationGangUnit = Prefix + "gang-unit"
	// AnnotationGangSlots is where the slots of a role are in its Gang, as FIRST/EACH/PODS: the first slot of the role, its pods per
	// replica, and its pods. A pod's slot is FIRST + replica × EACH + index. Absent on batch Jobs, whose pods have all slots.
	AnnotationGangSlots = Prefix + "gang-slots"
	// AnnotationGangRole is the role of the pod in its Gang; pods of one role come from one template. All pods of a batch Job have
	// RoleWorker.
	AnnotationGangRole = Prefix + "gang-role"
	// AnnotationGangSlot is the slot of the pod in its Gang, from 0. At most one pod of a Gang holds a slot.
	AnnotationGangSlot = Prefix + "gang-slot"
	// AnnotationImageCommand is the command of the training container's image, as JSON, if the container names none; read when the job was
	// admitted.
	AnnotationImageCommand = Prefix + "image-command"
	// AnnotationInstallResources holds the resources of init container holdfast-install, as JSON by kind, if the namespace's LimitRanges
	// refuse the defaults. The webhook writes it when it admits the job.
	AnnotationInstallResources = Prefix + "install-resources"
	// AnnotationInjected holds version and digest of what the webhook injected into the pod.
	AnnotationInjected = Prefix + "injected"
	// AnnotationInjection lists, as JSON (type Injection), what the webhook added, what it left out and why. The gang controller copies it
	// to the Gang.
	AnnotationInjection = Prefix + "injection"
)

// RoleWorker is the role of all pods of a batch Job.
const RoleWorker = "worker"

// Keys of the cluster autoscaler, which the webhook writes on pods of a job with AnnotationProvisioningClass: with them the autoscaler adds
// no nodes for single pods.
const (
	// AnnotationConsumesRequest names the ProvisioningRequest whose room the pod uses.
	AnnotationConsumesRequest = "autoscaling.x-k8s.io/consume-provisioning-request"
	// AnnotationRequestClass is the class of that request.
	AnnotationRequestClass = "autoscaling.x-k8s.io/provisioning-class-name"
)

// RequestName returns the name of a Gang's ProvisioningRequest and of the PodTemplate that it refers to.
func RequestName(gang string) string { return "holdfast-" + gang }

// AnnotationAttempt is on a ProvisioningRequest: its number, from 1, among those created for the same lack of nodes.
const AnnotationAttempt = Prefix + "attempt"

// AnnotationTopologyDomain is the topology domain of a pod's node, by level, widest first, such as "zone=a,nvlink=c7". The scheduler writes
// it with the pod's binding; Holdfast never reads it.
const AnnotationTopologyDomain = Prefix + "topology-domain"

// AnnotationInitialPlacement marks a pod that was bound in its gang's initial placement. The value is the creation time of the youngest pod
// placed with it and a checksum of the UIDs of those created in that second. The scheduler writes it with the binding; a scheduler that
// restarts meanwhile learns from it that the gang was never complete.
const AnnotationInitialPlacement = Prefix + "initial-placement"

// LabelReplaced ("true") is put on a pod that was taken out of its gang because another pod takes its place. No component counts it as a
// member.
const LabelReplaced = Prefix + "replaced"

// AnnotationMadeRoom is put on a Job: when a pod that was taken out of it last stopped to count against the namespace's quotas. The change
// makes the Job controller sync the Job, and create the pod that a quota refused.
const AnnotationMadeRoom = Prefix + "made-room"

// AnnotationEvictionRefused is on a pod with LabelReplaced whose eviction was refused: the message of the disruption budget. The gang
// controller copies it to the Gang while the pod exists.
const AnnotationEvictionRefused = Prefix + "eviction-refused"

// AnnotationEndedByNode is on a pod with LabelReplaced whose kubelet did not admit it, or ended it: the reason of the pod's status.
// Admission writes it before that status is stored; the scheduler counts by it which nodes reject pods.
const AnnotationEndedByNode = Prefix + "ended-by-node"

// SchedulerName is the scheduler that the webhook writes into pods that name no scheduler or the default one.
const SchedulerName = "holdfast-scheduler"

// TokenAudience is the audience of the projected token by which an agent proves its pod.
const TokenAudience = "holdfast-coordinator"

// Namespace is where the manifests install Holdfast.
const Namespace = "holdfast-system"

// Injection is what the webhook did to a pod.
type Injection struct {
	// StateBytes is the size of one slot in bytes; 0: state in memory is off.
	StateBytes int64 `json:"stateBytes,omitempty"`
	// Slots is how many slots each arena has; 0: three.
	Slots int32 `json:"slots,omitempty"`
	// Ranks is the number of ranks per pod for which memory was counted.
	Ranks int32 `json:"ranks,omitempty"`
	// ShmBytes is the size of the volume at /dev/shm; 0: none was added.
	ShmBytes int64 `json:"shmBytes,omitempty"`
	// MemoryAdded is the number of bytes added to the memory request or limit.
	MemoryAdded int64 `json:"memoryAdded,omitempty"`
	// Standbys reports whether standby processes are on.
	Standbys bool `json:"standbys,omitempty"`
	// Notes explain what is off and why.
	Notes []string `json:"notes,omitempty"`
}
