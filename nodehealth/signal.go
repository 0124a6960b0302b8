package nodehealth

import "time"

// Source is who saw something.
type Source string

const (
	// NVML: the driver's library, asked or listened to.
	NVML Source = "nvml"
	// Kmsg: the kernel log.
	Kmsg Source = "kmsg"
	// Probe: the process that asks NVML, or its absence.
	Probe Source = "probe"
	// API: the Node object.
	API Source = "api"
)

// Kind is the type of a signal.
type Kind string

const (
	// Tick: nothing was seen, time has passed.
	Tick Kind = ""
	// Xid: the driver reported error Code of Device.
	Xid Kind = "xid"
	// SXid: an NVSwitch reported error Code; Fatal says how it was marked.
	SXid Kind = "sxid"
	// OffBus: the kernel log says that Device has fallen off the bus, with or without an Xid.
	OffBus Kind = "off-bus"
	// Action: the kernel log says that the recovery action of Device is now Code.
	RecoveryChanged Kind = "recovery"
	// Read: NVML answered; Readings has every device that it lists.
	Read Kind = "read"
	// Hang: NVML has not answered within its deadline.
	Hang Kind = "hang"
	// Blind: there is no NVML to ask; Text says why.
	Blind Kind = "blind"
	// Released: NVML is not asked by intention, and the GPUs' device files are closed; Text says at whose word.
	Released Kind = "released"
	// Expected: the node should have Code GPUs, 0: unknown; Text names the source. A label's number may be too low, if its writer
	// sees no more than NVML does; a user's number is Final.
	Expected Kind = "expected"
)

// Signal is one thing that was seen, without opinion.
type Signal struct {
	At     time.Time
	Source Source
	// Device is a UUID or a PCI address; empty: the node.
	Device string
	Kind   Kind
	Code   int
	Fatal  bool
	// Final belongs to Expected.
	Final bool
	// Text is for people.
	Text string
	// Seq numbers the records of the kernel log of one boot; 0 elsewhere.
	Seq uint64
	// Readings belong to Read.
	Readings []Reading
}

// Recovery actions of the driver, NVML's DEV_GET_GPU_RECOVERY_ACTION.
const (
	// RecoveryUnknown: the driver is too old to say.
	RecoveryUnknown     = -1
	RecoveryNone        = 0
	RecoveryGPUReset    = 1
	RecoveryNodeReboot  = 2
	RecoveryDrainP2P    = 3
	RecoveryDrainReset  = 4
	RecoveryFabric      = 5
	RecoveryBusReset    = 6
	RecoverySystemReset = 7
)

// Reading is NVML's data of one device at one moment.
type Reading struct {
	// Device is the UUID, PCI the address (domain:bus:device), empty where not even that was answered.
	Device, PCI string
	// Lost: the device does not answer any more. ResetRequired: it answers nothing else than that.
	Lost, ResetRequired bool
	// Recovery is the driver's recovery action or RecoveryUnknown.
	Recovery int
	// RemapPending: memory rows wait for a reset to be replaced. RemapFailed: there are no spare rows left.
	RemapPending, RemapFailed bool
	// Uncorrected counts memory errors since the driver was loaded that could not be corrected.
	Uncorrected uint64
	// LinksUp and LinksDown count its NVLinks by whether they are active; a link that is not wired is never active, so
	// only a comparison tells. Both 0: none. LinksUnknown: they could not be counted just now, and neither number means anything.
	LinksUp, LinksDown int
	LinksUnknown       bool
	// Width is how many PCIe lanes are used of MaxWidth that GPU and slot have, Speed and MaxSpeed likewise the generation
	// of PCIe while the GPU is at full clocks; 0: not known.
	Width, MaxWidth, Speed, MaxSpeed int
}

// bad reports whether the device is of no use as it is.
func (r Reading) bad() bool {
	return r.Lost || r.ResetRequired || r.Recovery > RecoveryNone
}

// WaitsForReset reports whether a reset has to be made before the device reads well.
func (r Reading) WaitsForReset() bool { return r.bad() || r.RemapPending || r.RemapFailed }
