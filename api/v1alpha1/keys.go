package v1alpha1

// Prefix is the namespace of every label and annotation key that is ours.
const Prefix = "holdfast.dev/"

// Annotations that users write, on a job or on its pod template. Where both carry a key, the pod template wins. A key under Prefix
// that is not listed in this file is refused at admission.
const (
	// AnnotationEnabled opts a job in ("true") or explicitly out ("false").
	AnnotationEnabled = Prefix + "enabled"
	// AnnotationStateSize is the size of the state that one rank keeps in memory, a quantity such as
	// "40Gi". Each rank's arena holds AnnotationSlots slots of this size. Absent: state in memory is off.
	AnnotationStateSize = Prefix + "state-size"
	// AnnotationSlots is how many states a rank's arena has room for: "3" (default), or "2", which takes a third less
	// memory and makes saves wait for the other ranks. Needs AnnotationStateSize.
	AnnotationSlots = Prefix + "slots"
	// AnnotationStandbys is "auto" (default: one warm standby process per rank where memory allows) or "off".
	AnnotationStandbys = Prefix + "standbys"
	// AnnotationStandbyMemory is the memory added to the container for the standbys of a pod, a quantity;
	// default DefaultStandbyMemory.
	AnnotationStandbyMemory = Prefix + "standby-memory"
	// AnnotationStandbySkipModules lists Python modules, with commas between, that standbys do not import ahead.
	AnnotationStandbySkipModules = Prefix + "standby-skip-modules"
	// AnnotationRanks is the number of ranks (processes) per pod that memory is counted for; default: the number in the container's
	// launcher command, else its number of GPUs, else 1.
	AnnotationRanks = Prefix + "ranks"
	// AnnotationMaxRestarts is how many restarts there may be before a failure ends the job; default: what the launcher's
	// --max-restarts says, else as many as there is progress between.
	AnnotationMaxRestarts = Prefix + "max-restarts"
	// AnnotationShmSize is the size of the memory volume that the training container gets at /dev/shm where it mounts nothing
	// there, a quantity, or "off"; default: a share of its memory limit.
	AnnotationShmSize = Prefix + "shm-size"
	// AnnotationContainer names the container that trains; default: what webhook.chooseContainer finds.
	AnnotationContainer = Prefix + "container"
	// AnnotationStorageClaim names a PersistentVolumeClaim in the job's namespace to which steps are copied
	// aside from training. Absent: state outlives processes, not pods. Needs AnnotationStateSize.
	AnnotationStorageClaim = Prefix + "storage-claim"
	// AnnotationStorageInterval is how often a step is copied to storage, a duration; default DefaultStorageInterval.
	AnnotationStorageInterval = Prefix + "storage-interval"
	// AnnotationKeepCheckpoints is how many of the newest steps stay in storage, from MinKept (default) to MaxKept.
	AnnotationKeepCheckpoints = Prefix + "keep-checkpoints"
	// AnnotationKeepCheckpointEvery has one step per such a time stay besides, a duration; the newest MaxKeptEvery of them.
	AnnotationKeepCheckpointEvery = Prefix + "keep-checkpoint-every"
	// AnnotationPinnedCheckpoints lists steps that stay in storage until they are removed from it, as STEP@GENERATION with commas
	// between. It is on the Job itself and may change at any time; at most MaxPins.
	AnnotationPinnedCheckpoints = Prefix + "pinned-checkpoints"
	// AnnotationPinWish numbers the value of AnnotationPinnedCheckpoints: kubectl holdfast ckpt raises it with each change, to
	// match the coordinator's answer to its request.
	AnnotationPinWish = Prefix + "pin-wish"
	// AnnotationMode is ModeAct (default) or ModeObserve.
	AnnotationMode = Prefix + "mode"

	// AnnotationRunTime is the longest that the job's pods run once they have started, a duration such as "36h". A job
	// that says so may use room meanwhile that is reserved for another one. Absent: the pod's activeDeadlineSeconds.
	AnnotationRunTime = Prefix + "run-time"

	// AnnotationMasterPort is the port, or the range of ports as "29500-29531", that rank 0's store listens on. Absent: any free one.
	AnnotationMasterPort = Prefix + "master-port"

	// AnnotationTopologyRequired names a topology level, by name ("rack") or node label: all pods of the job are
	// placed in one domain of it, or not at all.
	AnnotationTopologyRequired = Prefix + "topology-required"
	// AnnotationTopologyPreferred names the narrowest level at which closeness counts; default: the node.
	AnnotationTopologyPreferred = Prefix + "topology-preferred"
	// AnnotationSliceLevel names the level whose domains get equal numbers of pods, slices; default where
	// AnnotationSliceSize or AnnotationBlockSize is set: the narrowest level.
	AnnotationSliceLevel = Prefix + "slice-level"
	// AnnotationSliceSize is the number of pods of a slice; default: as many as fit, so that there are few.
	AnnotationSliceSize = Prefix + "slice-size"
	// AnnotationSliceShape is SliceEven (default) or SliceUneven.
	AnnotationSliceShape = Prefix + "slice-shape"
	// AnnotationBlockSize is a number of consecutive pods that are never parted; slices are made of whole ones.
	AnnotationBlockSize = Prefix + "block-size"
	// AnnotationSpares is the number of nodes that stay free in each domain that is used, for pods that are replaced.
	AnnotationSpares = Prefix + "spares"
	// AnnotationProvisioningClass is the class of the ProvisioningRequest by which a gang that is refused for lack of room requests
	// nodes for all of its pods from an autoscaler. Absent: none is created.
	AnnotationProvisioningClass = Prefix + "provisioning-class"
	// AnnotationWholeNodes ("true" or "false", the default) requests nodes without other jobs' pods.
	AnnotationWholeNodes = Prefix + "whole-nodes"
)

// Values of AnnotationSliceShape.
const (
	// SliceEven: every domain that is used gets one slice, and all are of one size.
	SliceEven = "even"
	// SliceUneven: domains may get different numbers of pods, made of whole slices or blocks.
	SliceUneven = "uneven"
)

// MaxPins is how many steps of a job may be pinned: each takes room in the claim and an entry in the Gang.
const MaxPins = 16

// MinKept, MaxKept and MaxKeptEvery bound what AnnotationKeepCheckpoints and AnnotationKeepCheckpointEvery keep: each step takes
// room in the claim and an entry in the Gang.
const (
	MinKept      = 2
	MaxKept      = 32
	MaxKeptEvery = 48
)

// DefaultStorageInterval is the value of AnnotationStorageInterval where it is absent.
const DefaultStorageInterval = "1m"

// Values of AnnotationMode.
const (
	// ModeAct: Holdfast places, restarts and replaces.
	ModeAct = "act"
	// ModeObserve: pods are left as they are; what Holdfast would have done, and the time that this would
	// have saved, is told.
	ModeObserve = "observe"
)

// DefaultStandbyMemory is the value of AnnotationStandbyMemory where it is absent.
const DefaultStandbyMemory = "512Mi"

// Keys that the webhook writes on the pod template and on pods; people's values for them are refused
// on job kinds, and on pods unless they equal what the webhook would write.
const (
	// LabelGang is the name of the Gang that the pod belongs to, in the pod's namespace.
	LabelGang = Prefix + "gang"
	// AnnotationGangSize is the number of pods that are placed together.
	AnnotationGangSize = Prefix + "gang-size"
	// AnnotationGangRole is the role of the pod in its Gang; pods of one role come from one template. All pods of a batch Job have
	// RoleWorker.
	AnnotationGangRole = Prefix + "gang-role"
	// AnnotationGangSlot is the slot of the pod in its Gang, from 0. At most one pod of a Gang holds a slot.
	AnnotationGangSlot = Prefix + "gang-slot"
	// AnnotationImageCommand is what the training container's image starts, as JSON, where the container names no
	// command: read when the Job was admitted.
	AnnotationImageCommand = Prefix + "image-command"
	// AnnotationInstallResources holds the resources of init container holdfast-install, as JSON by kind, if the namespace's
	// LimitRanges do not admit the default ones. Admission of the Job writes it.
	AnnotationInstallResources = Prefix + "install-resources"
	// AnnotationInjected marks an injected pod: version and digest of what was injected.
	AnnotationInjected = Prefix + "injected"
	// AnnotationInjection carries, as JSON, what the webhook added and what it left out and why
	// (type Injection); the Gang repeats it.
	AnnotationInjection = Prefix + "injection"
)

// RoleWorker is the role of all pods of a batch Job.
const RoleWorker = "worker"

// Keys of the autoscaler, which the webhook puts on pods of a job with AnnotationProvisioningClass: it adds no nodes for these pods one by
// one.
const (
	// AnnotationConsumesRequest names the ProvisioningRequest that a pod takes its room of.
	AnnotationConsumesRequest = "autoscaling.x-k8s.io/consume-provisioning-request"
	// AnnotationRequestClass is the class of that request.
	AnnotationRequestClass = "autoscaling.x-k8s.io/provisioning-class-name"
)

// RequestName names the ProvisioningRequest of a Gang, and the PodTemplate that it refers to.
func RequestName(gang string) string { return "holdfast-" + gang }

// AnnotationAttempt is put on a ProvisioningRequest: the number, from 1, of those that were made for the same lack of nodes.
const AnnotationAttempt = Prefix + "attempt"

// AnnotationTopologyDomain is written by the scheduler with a pod's binding: the fabric domain of its node, by level,
// widest first, such as "zone=a,nvlink=c7". It is what was true then, and never read by Holdfast.
const AnnotationTopologyDomain = Prefix + "topology-domain"

// AnnotationInitialPlacement is written by the scheduler with a pod's binding, where the pod got its node while its gang
// was placed for the first time: the creation time of the youngest pod that was placed with it, and a checksum of the UIDs of
// those that were created in that second. A scheduler that starts in the middle of that knows by it that the gang was never whole.
const AnnotationInitialPlacement = Prefix + "initial-placement"

// LabelReplaced ("true") is put on a pod that was taken out of its gang because another one takes its
// place. It is a member no more, for every part.
const LabelReplaced = Prefix + "replaced"

// AnnotationMadeRoom is put on a Job: when a pod that was taken out of it last stopped to count in the namespace's quotas. The Job
// controller looks at a Job that changes, and then makes the pod that a quota refused.
const AnnotationMadeRoom = Prefix + "made-room"

// AnnotationEvictionRefused is on a pod with LabelReplaced whose eviction is refused: the message of the disruption budget. The
// Gang repeats it while the pod exists.
const AnnotationEvictionRefused = Prefix + "eviction-refused"

// SchedulerName is the scheduler that the webhook writes into pods that name none or the default one.
const SchedulerName = "holdfast-scheduler"

// TokenAudience is the audience of the projected token by which an agent proves its pod.
const TokenAudience = "holdfast-coordinator"

// Namespace is where the manifests install Holdfast.
const Namespace = "holdfast-system"

// Injection says what the webhook did to a pod.
type Injection struct {
	// StateBytes is the size of one slot in bytes; 0: state in memory is off.
	StateBytes int64 `json:"stateBytes,omitempty"`
	// Slots is how many slots each arena has; 0: three.
	Slots int32 `json:"slots,omitempty"`
	// Ranks is the number of ranks per pod that memory was counted for.
	Ranks int32 `json:"ranks,omitempty"`
	// ShmBytes is the size of the volume at /dev/shm; 0: none was added.
	ShmBytes int64 `json:"shmBytes,omitempty"`
	// MemoryAdded is what was added to the memory request or limit, in bytes.
	MemoryAdded int64 `json:"memoryAdded,omitempty"`
	// Standbys reports whether standby processes are on.
	Standbys bool `json:"standbys,omitempty"`
	// Notes explain, for people, what is off and why.
	Notes []string `json:"notes,omitempty"`
}
