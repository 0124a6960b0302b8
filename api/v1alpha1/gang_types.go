package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gang shows the pods of one training job: they are placed together, restarted together and share one generation. Holdfast creates and
// writes it; users only read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gangs,singular=gang,scope=Namespaced,shortName=gg,categories=all
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.jobRef.kind`
// +kubebuilder:printcolumn:name="API",type=string,JSONPath=`.spec.jobRef.apiVersion`,priority=1
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Gen",type=integer,JSONPath=`.status.run.generation`
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.step`
// +kubebuilder:printcolumn:name="Saved",type=date,JSONPath=`.status.savedAt`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.run.restarts`
// +kubebuilder:printcolumn:name="Goodput%",type=integer,JSONPath=`.status.goodputPercent`
// +kubebuilder:printcolumn:name="Capacity%",type=integer,JSONPath=`.status.capacityPercent`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Running")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Gang struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GangSpec   `json:"spec,omitempty"`
	Status GangStatus `json:"status,omitempty"`
}

// GangList is a list of Gangs.
//
// +kubebuilder:object:root=true
type GangList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Gang `json:"items"`
}

// MaxMembers is the most pods that a gang can have: each is an entry of the Gang and of plans. Any user who may create a pod can write the
// number, so it is checked at admission and at each read, before memory of that size is allocated.
const MaxMembers = 5000

// GangSpec is what the job's settings request. The gang controller writes it.
type GangSpec struct {
	// JobRef is the job that the Gang was created for.
	JobRef JobReference `json:"jobRef"`
	// Members is the number of pods that are placed together.
	// +kubebuilder:validation:Maximum=5000
	Members int32 `json:"members"`
	// MinPods is the least number of pods that can train; 0: all are needed.
	// +optional
	MinPods int32 `json:"minPods,omitempty"`
	// PodsUnit: the numbers of pods with which a gang with MinPods trains are multiples of it, in whole blocks of so many consecutive slots;
	// 0: 1.
	// +optional
	PodsUnit int32 `json:"podsUnit,omitempty"`
	// ShrinkAfterSeconds is how long a gang with MinPods waits for a pod whose coming cannot be foretold; 0: 30.
	// +optional
	ShrinkAfterSeconds int32 `json:"shrinkAfterSeconds,omitempty"`
	// Grow is for which pods ranks of a gang with MinPods are restarted: GrowAuto, GrowWithRestart or GrowOff; absent: GrowAuto.
	// +kubebuilder:validation:Enum=auto;with-restart;off
	// +optional
	Grow string `json:"grow,omitempty"`
	// RetrySizes is AnnotationRetrySizes: once it is above RunSizes.Retried, struck sizes are tried again.
	// +optional
	RetrySizes int64 `json:"retrySizes,omitempty"`
	// StateBytes is the size of the state that each rank keeps in memory; 0: state in memory is off.
	// +optional
	StateBytes int64 `json:"stateBytes,omitempty"`
	// Storage is where steps are copied to; nil: they are not copied.
	// +optional
	Storage *GangStorage `json:"storage,omitempty"`
	// Hang is what is done about ranks that stand still: HangAct, HangReport or HangOff; absent: HangOff.
	// +kubebuilder:validation:Enum=act;report;off
	// +optional
	Hang string `json:"hang,omitempty"`
	// HangTimeoutSeconds is the longest time without a step after which ranks are ended whatever they do; 0: none.
	// +optional
	HangTimeoutSeconds int32 `json:"hangTimeoutSeconds,omitempty"`
	// NodeCheck is before which generations pods are tried, alone and in pairs: NodeCheckAlways, NodeCheckAuto (before the first one unless
	// every node passed a check within 24 h), NodeCheckSuspects or NodeCheckOff; absent: NodeCheckOff.
	// +kubebuilder:validation:Enum=always;auto;suspects;off
	// +optional
	NodeCheck string `json:"nodeCheck,omitempty"`
	// SlowNodes is what is done about a node that a node check finds slow: SlowReport or SlowExclude; absent: SlowReport.
	// +kubebuilder:validation:Enum=report;exclude
	// +optional
	SlowNodes string `json:"slowNodes,omitempty"`
	// CheckWish is the number of the newest request of a node check (AnnotationCheckWish); RunStatus.CheckWish reaches it once the check is
	// due. CheckNow: ranks are restarted for it.
	// +optional
	CheckWish int64 `json:"checkWish,omitempty"`
	// +optional
	CheckNow bool `json:"checkNow,omitempty"`
}

// GangStorage is the persistent volume claim that steps are copied to, how often, and which of them stay.
type GangStorage struct {
	Claim           string `json:"claim"`
	IntervalSeconds int32  `json:"intervalSeconds"`
	// Keep is the number of newest steps that stay in storage; absent: 2.
	// +optional
	Keep int32 `json:"keep,omitempty"`
	// KeepEverySeconds: one more step per interval of this length stays in storage; absent: none.
	// +optional
	KeepEverySeconds int32 `json:"keepEverySeconds,omitempty"`
	// Pins are the steps that users pinned. They stay in storage once RunStatus.Pinned lists them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Pins []Checkpoint `json:"pins,omitempty"`
	// PinWish is the Job's AnnotationPinWish when Pins was read. RunStatus.PinWish reaches it once Pinned answers Pins.
	// +optional
	PinWish int64 `json:"pinWish,omitempty"`
}

// Checkpoint identifies a step in storage by its number and the generation that copied it.
type Checkpoint struct {
	Step       int64 `json:"step"`
	Generation int64 `json:"generation"`
}

// JobReference identifies a job in the Gang's namespace.
type JobReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// GangStatus has one writer per part: the scheduler writes Placement, the coordinator Run, the gang controller all other fields. Each
// applies its part under its own field manager.
type GangStatus struct {
	// Phase is one word that summarizes the conditions.
	Phase GangPhase `json:"phase,omitempty"`
	// Nodes is the number of bound pods and of all pods, as "bound/wanted"; of a gang with MinPods "bound/wanted (least–wanted)".
	Nodes string `json:"nodes,omitempty"`
	// Step is the newest step that all ranks finished: the number that the script reports, else the optimizer steps counted from the resume
	// point; absent: unknown.
	Step int64 `json:"step,omitempty"`
	// SavedStep is the newest step that all ranks hold sealed.
	SavedStep int64 `json:"savedStep,omitempty"`
	// SavedAt is when SavedStep was first held by all ranks.
	// +optional
	SavedAt *metav1.Time `json:"savedAt,omitempty"`
	// GoodputPercent is the goodput since the first start, rounded down; absent while condition GoodputKnown is false.
	// +optional
	GoodputPercent *int32 `json:"goodputPercent,omitempty"`
	// CapacityPercent is the share of its pods with which a gang with MinPods trained, on average since the first start, rounded down; absent
	// before that, and without MinPods.
	// +optional
	CapacityPercent *int32 `json:"capacityPercent,omitempty"`
	// Members has one entry per slot that a pod holds, by slot. Where all would exceed the object's size limit, it has the first ones.
	// +listType=atomic
	Members []MemberStatus `json:"members,omitempty"`
	// Notes explain what is off or degraded and why. Where some were dropped, the last note gives their number.
	Notes []string `json:"notes,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Placement is the scheduler's newest answer.
	// +optional
	Placement *PlacementStatus `json:"placement,omitempty"`
	// Run is the coordinator's record. Its generation never decreases.
	// +optional
	Run *RunStatus `json:"run,omitempty"`
}

// GangPhase is one word that summarizes a gang's state.
// +kubebuilder:validation:Enum=Waiting;Starting;Running;Recovering;Finished;Failed
type GangPhase string

const (
	// PhaseWaiting: not all pods are bound, and fewer than can train.
	PhaseWaiting GangPhase = "Waiting"
	// PhaseStarting: all pods are bound, and no generation runs yet.
	PhaseStarting GangPhase = "Starting"
	// PhaseRunning: all ranks of the newest generation run.
	PhaseRunning GangPhase = "Running"
	// PhaseRecovering: a failure is being repaired.
	PhaseRecovering GangPhase = "Recovering"
	// PhaseFinished: all ranks ended with exit code 0.
	PhaseFinished GangPhase = "Finished"
	// PhaseFailed: the job was given up.
	PhaseFailed GangPhase = "Failed"
)

// MemberStatus is one pod of the gang.
type MemberStatus struct {
	Slot  int32  `json:"slot"`
	Pod   string `json:"pod,omitempty"`
	Node  string `json:"node,omitempty"`
	Ranks int32  `json:"ranks,omitempty"`
	// StandbysReady is the number of warm standbys in the pod.
	StandbysReady int32 `json:"standbysReady,omitempty"`
	// Attached reports whether the pod's agent is connected to the coordinator.
	Attached bool `json:"attached,omitempty"`
}

// PlacementStatus is the scheduler's answer for the whole gang: a placement or a refusal.
type PlacementStatus struct {
	// Placed is true once every member has a node.
	Placed bool `json:"placed"`
	// Reason is a condition reason: ReasonPlaced, ReasonWaitingForMembers, ReasonInsufficientNodes or another.
	Reason string `json:"reason"`
	// Message explains the reason in a sentence, with the counts.
	Message string `json:"message"`
	// Fits is the number of pods that would fit now, Wanted the number that must be placed.
	Fits   int32 `json:"fits"`
	Wanted int32 `json:"wanted"`
	// Excluded is the number of excluded nodes by cause.
	Excluded map[string]int32 `json:"excluded,omitempty"`
	// Nodes is the plan: one node per slot, by slot. Where all would exceed the object's size limit, it has the first slots.
	Nodes []string `json:"nodes,omitempty"`
	// Held is the room held for the gang while it waits; absent: none.
	// +optional
	Held *HeldRoom `json:"held,omitempty"`
	// ObservedAt is when the answer last changed.
	ObservedAt metav1.MicroTime `json:"observedAt"`
}

// HeldRoom is room that the scheduler keeps for one gang.
type HeldRoom struct {
	// Kind is why the room is held.
	Kind HeldKind `json:"kind"`
	// Domain is the topology domain that has the room, such as "rack a/r1"; empty: no single domain.
	Domain string `json:"domain,omitempty"`
	// Nodes are the nodes that have the room.
	// +listType=atomic
	Nodes []string `json:"nodes"`
	// Since is when the scheduler chose the room.
	Since metav1.Time `json:"since"`
	// ExpectedAt is when the room of a reservation is expected to be free; absent: unknown.
	// +optional
	ExpectedAt *metav1.Time `json:"expectedAt,omitempty"`
	// Until is when a nomination that was not used ends.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Victims are the gangs and single pods that were preempted, VictimPods is the number of their pods.
	// +listType=atomic
	Victims    []string `json:"victims,omitempty"`
	VictimPods int32    `json:"victimPods,omitempty"`
}

// HeldKind is why room is held.
// +kubebuilder:validation:Enum=Nomination;Reservation
type HeldKind string

const (
	// HeldNomination: other pods were preempted for the gang.
	HeldNomination HeldKind = "Nomination"
	// HeldReservation: the gang waits until the room is free.
	HeldReservation HeldKind = "Reservation"
)
