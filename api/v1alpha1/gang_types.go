package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gang shows the pods of one training job that are placed together, restarted together and share one
// generation. Holdfast creates it for an opted-in job; people read it and never need to write it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gangs,singular=gang,scope=Namespaced,shortName=gg,categories=all
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.jobRef.kind`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Gen",type=integer,JSONPath=`.status.run.generation`
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.step`
// +kubebuilder:printcolumn:name="Saved",type=date,JSONPath=`.status.savedAt`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.run.restarts`
// +kubebuilder:printcolumn:name="Goodput%",type=integer,JSONPath=`.status.goodputPercent`
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

// MaxMembers is the most pods that a gang can have. Each is an entry of the Gang and of plans: the number, which anybody who may
// create a pod can write, is refused at admission and wherever it is read, before anything of that size is made.
const MaxMembers = 5000

// GangSpec is what the job asks for.
type GangSpec struct {
	// JobRef is the job that the Gang was made for.
	JobRef JobReference `json:"jobRef"`
	// Members is the number of pods that are placed together.
	// +kubebuilder:validation:Maximum=5000
	Members int32 `json:"members"`
	// StateBytes is the size of the state that each rank keeps in memory; 0: off.
	// +optional
	StateBytes int64 `json:"stateBytes,omitempty"`
	// Storage is where steps are copied to; nil: nowhere.
	// +optional
	Storage *GangStorage `json:"storage,omitempty"`
}

// GangStorage names a claim and how often a step is copied to it.
type GangStorage struct {
	Claim           string `json:"claim"`
	IntervalSeconds int32  `json:"intervalSeconds"`
	// Keep is how many of the newest steps stay there; absent: 2. KeepEverySeconds has one step per such a time stay besides; absent:
	// none.
	// +optional
	Keep int32 `json:"keep,omitempty"`
	// +optional
	KeepEverySeconds int32 `json:"keepEverySeconds,omitempty"`
	// Pins are the steps that people want to stay there. Those that RunStatus.Pinned names stay for sure.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Pins []Checkpoint `json:"pins,omitempty"`
	// PinWish is the Job's AnnotationPinWish as it stood beside Pins; RunStatus.PinWish says when Pinned answers it.
	// +optional
	PinWish int64 `json:"pinWish,omitempty"`
}

// Checkpoint names a step that was copied to storage in a generation.
type Checkpoint struct {
	Step       int64 `json:"step"`
	Generation int64 `json:"generation"`
}

// JobReference names a job in the Gang's namespace.
type JobReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// GangStatus has one writer per part: the scheduler writes Placement, the coordinator writes Run, the
// gang controller everything else. Each applies its own part under its own field manager.
type GangStatus struct {
	// Phase sums up the conditions for people.
	Phase GangPhase `json:"phase,omitempty"`
	// Nodes is "bound/wanted".
	Nodes string `json:"nodes,omitempty"`
	// Step is the newest step that all ranks finished: the script's own where it tells them, else optimizer steps, counted from the
	// state that training resumed from; absent where that is not known.
	Step int64 `json:"step,omitempty"`
	// SavedStep is the newest step that all ranks hold sealed.
	SavedStep int64 `json:"savedStep,omitempty"`
	// SavedAt is when all ranks held SavedStep.
	// +optional
	SavedAt *metav1.Time `json:"savedAt,omitempty"`
	// GoodputPercent is the share of time since the first start that was spent on steps that were kept, rounded down to whole
	// percent; absent where condition GoodputKnown is false.
	// +optional
	GoodputPercent *int32 `json:"goodputPercent,omitempty"`
	// Members has one entry per slot that a pod holds, by slot; where the list would not fit into the object, for the
	// first of these.
	// +listType=atomic
	Members []MemberStatus `json:"members,omitempty"`
	// Notes explain what is off or degraded and why; the last one counts those that are left out.
	Notes []string `json:"notes,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Placement is the scheduler's present answer.
	// +optional
	Placement *PlacementStatus `json:"placement,omitempty"`
	// Run is the coordinator's record; its generation never falls.
	// +optional
	Run *RunStatus `json:"run,omitempty"`
}

// GangPhase is one word for people.
// +kubebuilder:validation:Enum=Waiting;Starting;Running;Recovering;Finished;Failed
type GangPhase string

const (
	// PhaseWaiting: not all pods are bound.
	PhaseWaiting GangPhase = "Waiting"
	// PhaseStarting: bound, but no generation runs yet.
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
	// StandbysReady is how many warm standby processes wait on this pod.
	StandbysReady int32 `json:"standbysReady,omitempty"`
	// Attached reports whether the pod's agent is connected to the coordinator.
	Attached bool `json:"attached,omitempty"`
}

// PlacementStatus is the scheduler's answer for the whole gang: a placement or a refusal.
type PlacementStatus struct {
	// Placed is true once every member has a node.
	Placed bool `json:"placed"`
	// Reason is a condition reason (ReasonPlaced, ReasonWaitingForMembers, ReasonInsufficientNodes, ...).
	Reason string `json:"reason"`
	// Message is the same for people, with the counts.
	Message string `json:"message"`
	// Fits and Wanted count pods that would fit now, and pods that must be placed.
	Fits   int32 `json:"fits"`
	Wanted int32 `json:"wanted"`
	// Excluded counts nodes by why they were left out.
	Excluded map[string]int32 `json:"excluded,omitempty"`
	// Nodes is the plan, by slot, once there is one; of a gang so large that the list would not fit, for the first slots.
	Nodes []string `json:"nodes,omitempty"`
	// Held is the room that is kept for a gang while it waits; absent: none is.
	// +optional
	Held *HeldRoom `json:"held,omitempty"`
	// ObservedAt is when the answer last changed.
	ObservedAt metav1.MicroTime `json:"observedAt"`
}

// HeldRoom is room that the scheduler keeps for one gang.
type HeldRoom struct {
	// Kind says how it came about.
	Kind HeldKind `json:"kind"`
	// Domain is where the room is, such as "rack a/r1"; empty: in no one domain.
	Domain string `json:"domain,omitempty"`
	// Nodes are those on which it is.
	// +listType=atomic
	Nodes []string `json:"nodes"`
	// Since is when it was named.
	Since metav1.Time `json:"since"`
	// ExpectedAt is when a reservation is expected to be free; absent: nobody knows.
	// +optional
	ExpectedAt *metav1.Time `json:"expectedAt,omitempty"`
	// Until is when a claim ends that was not used.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Victims names the gangs and single pods that were told to leave, VictimPods counts their pods.
	// +listType=atomic
	Victims    []string `json:"victims,omitempty"`
	VictimPods int32    `json:"victimPods,omitempty"`
}

// HeldKind is why room is held.
// +kubebuilder:validation:Enum=Nomination;Reservation
type HeldKind string

const (
	// HeldNomination: others were told to leave the room for the gang.
	HeldNomination HeldKind = "Nomination"
	// HeldReservation: the gang waits until the room is free.
	HeldReservation HeldKind = "Reservation"
)
