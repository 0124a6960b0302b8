package nodehealth

import (
	"fmt"
	"slices"
	"time"
)

// Action is what a verdict requires; a higher one is worse.
type Action int

const (
	// None: nothing is wrong.
	None Action = iota
	// Watch: shown to users; Holdfast does nothing.
	Watch
	// Exclude: no new pod is placed on the node.
	Exclude
	// Evict: the node cannot run training.
	Evict
)

// actions are the names of each, as in the Node's annotation.
var actions = [...]string{"None", "Watch", "Exclude", "Evict"}

func (a Action) String() string { return actions[a] }

// ParseAction returns the action with a name; ok is false if none has it.
func ParseAction(word string) (a Action, ok bool) {
	i := slices.Index(actions[:], word)
	return Action(max(i, 0)), i >= 0
}

// Exit is how a cause ends without an administrator. A reboot ends every cause; one that persists is seen again.
type Exit string

const (
	// ExitReads: NVML has read the device, and found it well, for the hold-off since the last sign of the cause.
	ExitReads Exit = "reads well"
	// ExitCleared: NVML has answered, without a sign of the cause, for the hold-off.
	ExitCleared Exit = "sign is gone"
	// ExitQuiet: not seen again for QuietFor.
	ExitQuiet Exit = "quiet"
)

const (
	// HoldOff is how long a check must pass again before a cause ends. Each recurrence within a day doubles it, up to HoldOffMax.
	HoldOff = 30 * time.Second
	// HoldOffBlind replaces it after an error of a switch, or of a GPU whose driver reports no recovery action: that GPUs answer proves
	// less. If no driver was ever read, an error ends when it has not recurred for HoldOffBlind.
	HoldOffBlind = 10 * time.Minute
	// HoldOffMax bounds the doubling.
	HoldOffMax = time.Hour
	// QuietFor is when a cause of action Watch ends.
	QuietFor = 10 * time.Minute
	// RepeatWithin is how long errors of applications count towards Row.Repeat, and recurrences towards the hold-off.
	RepeatWithin = 24 * time.Hour
	// HangGrace is how long a hanging probe only excludes.
	HangGrace = 20 * time.Second
)

// Cause is one word, the same in taint, event, metric label and runbook.
type Cause string

// The causes, worst and most specific first: of several with the same action the first is reported.
const (
	OffTheBus          Cause = "GPUOffTheBus"
	GPULost            Cause = "GPULost"
	RowRemapFailed     Cause = "RowRemapFailed"
	DoubleBitECC       Cause = "GPUDoubleBitECC"
	GSPTimeout         Cause = "GPUFirmwareTimeout"
	NVLinkError        Cause = "NVLinkError"
	SwitchError        Cause = "NVSwitchError"
	PowerCable         Cause = "GPUPowerCable"
	GPUNeedsReset      Cause = "GPUNeedsReset"
	NodeNeedsReboot    Cause = "NodeNeedsReboot"
	DrainPeers         Cause = "GPUDrainPeers"
	GPUFault           Cause = "GPUFault"
	DriverHangs        Cause = "DriverHangs"
	DriverGone         Cause = "DriverGone"
	GPUsReleased       Cause = "GPUsReleased"
	GPUMissing         Cause = "GPUMissing"
	NVLinkDown         Cause = "NVLinkDown"
	FabricRecovery     Cause = "FabricRecovery"
	RowRemapPending    Cause = "RowRemapPending"
	ContainedECC       Cause = "GPUContainedECC"
	ECCRate            Cause = "GPUECCRate"
	GPUDegraded        Cause = "GPUDegraded"
	UncorrectableECC   Cause = "GPUUncorrectableECC"
	PCIeDegraded       Cause = "PCIeDegraded"
	NVLinkReport       Cause = "NVLinkReport"
	SwitchReport       Cause = "NVSwitchReport"
	GPUReport          Cause = "GPUReport"
	UnknownXid         Cause = "UnknownXid"
	ApplicationRepeats Cause = "ApplicationErrors"
	Noted              Cause = "Noted"
)

// Row is the catalogue's entry for one cause.
type Row struct {
	Cause  Cause
	Action Action
	// Xids are the codes with this cause; other rows come from readings or text.
	Xids []int
	// Meaning is what happened, Next what an administrator should do.
	Meaning, Next string
	Exit          Exit
	// Repeat: a row of action None becomes Watch after this many errors on one device within RepeatWithin.
	Repeat int
	// Confirm: while the driver can name a recovery action, the row only excludes until the driver agrees.
	Confirm bool
}

const (
	reset  = "Drain the node and reset the GPU (nvidia-smi --gpu-reset), or reboot the node. "
	again  = "If it recurs, have the GPU examined."
	letGo  = " Before a reset make the daemon release the GPUs: kubectl annotate node NAME holdfast.dev/release-gpus=reset. After the reset run kubectl annotate node NAME holdfast.dev/release-gpus-."
	byself = " The taint is removed by itself after the GPU was healthy for the hold-off."
)

// Catalogue has one row per cause, in the order of the constants. The codes are those of NVIDIA's Xid catalogue.
var Catalogue = []Row{
	{OffTheBus, Evict, []int{79}, "the GPU has fallen off the bus", "Reboot the node; a power cycle is more reliable. The second time, have GPU, riser and power examined." + byself, ExitReads, 0, true},
	{GPULost, Evict, nil, "the GPU no longer answers the driver", "Reboot the node. The second time, have the GPU examined." + byself, ExitReads, 0, false},
	{RowRemapFailed, Evict, []int{64}, "a broken memory row could not be replaced: no spare rows are left", "Have the GPU replaced. A reset shows whether the fault persists." + letGo, ExitReads, 0, false},
	{DoubleBitECC, Evict, []int{48}, "memory error that could not be corrected", reset + again + letGo, ExitReads, 0, true},
	{GSPTimeout, Evict, []int{119, 120}, "the GPU's system processor does not answer", reset + "If it recurs, update driver and firmware." + letGo, ExitReads, 0, true},
	{NVLinkError, Evict, []int{74, 149}, "an NVLink has failed", reset + "If the same link fails again, have it examined." + letGo, ExitReads, 0, true},
	{SwitchError, Evict, nil, "an NVSwitch reported a fatal error", "Reboot the node; all GPUs of the switch are affected. If it recurs, have the switch examined.", ExitReads, 0, false},
	{PowerCable, Evict, []int{54}, "the GPU lacks power: a cable is not connected", "Have the power cables of the GPU examined.", ExitReads, 0, true},
	{GPUNeedsReset, Evict, nil, "the driver requests a reset of the GPU", reset + again + letGo, ExitReads, 0, false},
	{NodeNeedsReboot, Evict, nil, "the driver requests a reboot of the node", "Reboot the node. " + again, ExitReads, 0, false},
	{
		DrainPeers,
		Evict,
		nil,
		"the driver requests that all processes on the GPU are stopped",
		"Stop all processes on the GPUs of the node and check whether the driver requests more.",
		ExitReads,
		0,
		false,
	},
	{
		GPUFault,
		Evict,
		[]int{46, 62, 95, 109, 110, 136, 140, 143, 151, 155, 156, 158, 159, 167, 169},
		"the GPU has failed and needs a reset",
		reset + again + letGo,
		ExitReads,
		0,
		true,
	},
	{
		DriverHangs,
		Evict,
		nil,
		"the driver does not answer",
		"Reboot the node. Look for tasks in state D and for messages of NVRM in the kernel log.",
		ExitCleared,
		0,
		false,
	},
	{
		DriverGone,
		Exclude,
		nil,
		"the driver was loaded and is no longer loaded",
		"Check whether the driver is being updated; else load it or reboot the node. Pods that install a driver may still start here.",
		ExitCleared,
		0,
		false,
	},
	{
		GPUsReleased,
		Exclude,
		nil,
		"the daemon has released the GPUs for a repair, so their health is not read",
		"No action is needed while the repair lasts. The daemon opens them again after kubectl annotate node NAME holdfast.dev/release-gpus-, or when the GPU Operator's labels show the end of the repair.",
		ExitCleared,
		0,
		false,
	},
	{
		GPUMissing,
		Exclude,
		nil,
		"the driver lists fewer GPUs than the node should have",
		"Look for the missing GPU (lspci, kernel log) and reboot the node. If the node really has fewer now, run kubectl annotate node NAME holdfast.dev/gpus=NUMBER.",
		ExitCleared,
		0,
		false,
	},
	{
		NVLinkDown,
		Exclude,
		nil,
		"fewer NVLinks are active than before, or than on the other GPUs of the node",
		"Check the fabric manager and nvidia-smi nvlink -s; reset the GPU when the node is empty. If the same link stays down, have it examined." + letGo,
		ExitCleared,
		0,
		false,
	},
	{
		FabricRecovery,
		Exclude,
		nil,
		"the driver requests a recovery of the fabric's domain",
		"Check the fabric manager and the IMEX service of the domain; the node itself may stay.",
		ExitReads,
		0,
		false,
	},
	{
		RowRemapPending,
		Exclude,
		[]int{63},
		"a broken memory row waits for a reset to be replaced",
		"Reset the GPU when the node is empty; running jobs may end first." + letGo,
		ExitReads,
		0,
		false,
	},
	{
		ContainedECC,
		Exclude,
		[]int{94},
		"memory error that could not be corrected, contained to one process",
		"Reset the GPU when the node is empty; running jobs may end first." + letGo,
		ExitReads,
		0,
		false,
	},
	{ECCRate, Exclude, []int{92, 93}, "memory errors are frequent", "Have the GPU examined when the node is empty.", ExitReads, 0, false},
	{GPUDegraded, Exclude, []int{157, 168}, "the GPU works with reduced memory, links or power", "Have the GPU examined when the node is empty.", ExitReads, 0, false},
	{UncorrectableECC, Watch, nil, "memory errors could not be corrected since the driver was loaded", "Check whether rows are being replaced; a reset restarts the count." + letGo, ExitCleared, 0, false},
	{
		PCIeDegraded,
		Watch,
		nil,
		"the GPU's PCIe link is slower or has fewer lanes than the GPU and its slot support",
		"No action is needed unless jobs on the node are slow. Have the GPU reseated when the node is empty.",
		ExitCleared,
		0,
		false,
	},
	{NVLinkReport, Watch, []int{144, 145, 146, 147, 148, 150}, "an NVLink reported an error that the driver did not act on", "No action is needed unless jobs on the node fail.", ExitQuiet, 0, false},
	{SwitchReport, Watch, nil, "an NVSwitch reported an error that is not fatal", "No action is needed unless such errors are frequent.", ExitQuiet, 0, false},
	{GPUReport, Watch, []int{78, 142, 162, 163, 164, 165}, "the GPU reported a condition that by itself needs no action", "Look the number up in NVIDIA's Xid catalogue.", ExitQuiet, 0, false},
	{UnknownXid, Watch, nil, "the GPU reported an error that this catalogue does not list", "Look the number up in NVIDIA's Xid catalogue.", ExitQuiet, 0, false},
	{ApplicationRepeats, None, application(), "application errors recur on one GPU", "If they occur with different jobs, have the GPU examined; otherwise the job is at fault.", ExitQuiet, 5, false},
	{Noted, None, []int{37, 38, 43, 44, 45, 66, 67, 106, 107, 108, 121, 137, 141, 154, 160, 161, 171, 172}, "the error follows from another one, or needs no action", "No action is needed.", ExitQuiet, 0, false},
}

// application returns the codes that a program can cause.
func application() []int {
	codes := []int{8, 11, 13, 25, 31, 32, 60, 68, 69, 80, 139}
	for _, span := range [][2]int{{39, 41}, {70, 72}, {75, 77}, {82, 86}, {96, 105}, {126, 135}} {
		for c := span[0]; c <= span[1]; c++ {
			codes = append(codes, c)
		}
	}
	slices.Sort(codes)
	return codes
}

// byReset are the causes that a reset of the GPU ends. A reset is refused while any process has the GPU open.
var byReset = []Cause{RowRemapFailed, DoubleBitECC, GSPTimeout, NVLinkError, GPUNeedsReset, GPUFault}

// byPods are the causes that pods repair, such as the driver's own.
var byPods = []Cause{DriverGone, GPUsReleased}

// saidByDriver are the causes that the driver itself reports and withdraws.
var saidByDriver = []Cause{GPUNeedsReset, NodeNeedsReboot, DrainPeers, FabricRecovery}

// RowOf returns the row of a cause; every cause in a verdict has one.
func RowOf(c Cause) (Row, bool) {
	i := rank(c)
	if i < 0 {
		return Row{}, false
	}
	return Catalogue[i], true
}

func rank(c Cause) int {
	return slices.IndexFunc(Catalogue, func(r Row) bool { return r.Cause == c })
}

// ofXid returns the cause of an Xid.
func ofXid(code int) Cause {
	for _, r := range Catalogue {
		if slices.Contains(r.Xids, code) {
			return r.Cause
		}
	}
	return UnknownXid
}

// ofRecovery returns the cause of a recovery action other than none. An unknown action counts as the strongest.
func ofRecovery(code int) Cause {
	switch code {
	case RecoveryGPUReset, RecoveryDrainReset, RecoveryBusReset:
		return GPUNeedsReset
	case RecoveryDrainP2P:
		return DrainPeers
	case RecoveryFabric:
		return FabricRecovery
	}
	return NodeNeedsReboot
}

// alwaysFatal reports whether an error of an NVSwitch is fatal even if it is not marked so.
func alwaysFatal(code int) bool {
	return code == 10003 || code == 12020 || code == 22003 || code == 22011 || code >= 23001 && code <= 23017
}

func ofSXid(code int, fatal bool) Cause {
	if fatal || alwaysFatal(code) {
		return SwitchError
	}
	return SwitchReport
}

func recoveryText(code int) string {
	names := map[int]string{RecoveryNone: "none", RecoveryGPUReset: "GPU reset", RecoveryNodeReboot: "node reboot", RecoveryDrainP2P: "drain peers",
		RecoveryDrainReset: "drain and reset", RecoveryFabric: "recover the fabric's domain", RecoveryBusReset: "bus reset", RecoverySystemReset: "system reboot"}
	if n, ok := names[code]; ok {
		return "the driver's recovery action is: " + n
	}
	return fmt.Sprintf("the driver's recovery action is %d, which this version does not know", code)
}
