package nodehealth

import "time"

// Source is where a signal comes from.
type Source string

const (
	// NVML: the driver's library.
	NVML Source = "nvml"
	// Kmsg: the kernel log.
	Kmsg Source = "kmsg"
	// Probe: the process that queries NVML, or its absence.
	Probe Source = "probe"
	// API: the Node object.
	API Source = "api"
)

// Kind is the type of a signal.
type Kind string

const (
	// Tick: only time has passed.
	Tick Kind = ""
	// Xid: the driver reported error Code of Device.
	Xid Kind = "xid"
	// SXid: an NVSwitch reported error Code; Fatal is how it was marked.
	SXid Kind = "sxid"
	// OffBus: by the kernel log, Device has fallen off the bus, with or without an Xid.
	OffBus Kind = "off-bus"
	// RecoveryChanged: by the kernel log, the recovery action of Device is now Code.
	RecoveryChanged Kind = "recovery"
	// Read: NVML answered; Readings has every device that it lists.
	Read Kind = "read"
	// Hang: NVML has not answered within its deadline.
	Hang Kind = "hang"
	// Blind: there is no NVML to query; Text has the reason.
	Blind Kind = "blind"
	// Released: NVML is not queried by design, and the GPUs' device files are closed; Text is the annotation or label that requires it.
	Released Kind = "released"
	// Expected: the node should have Code GPUs, 0: unknown; Text names the source. A label's number may be too low, if its writer
	// sees no more than NVML does; a user's number is Final.
	Expected Kind = "expected"
)

// Signal is one observation.
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
	// Text is for users.
	Text string
	// Seq numbers the records of the kernel log of one boot; 0 elsewhere.
	Seq uint64
	// Readings belong to Read.
	Readings []Reading
}

// Recovery actions of the driver, NVML's DEV_GET_GPU_RECOVERY_ACTION.
const (
	// RecoveryUnknown: the driver is too old to report it.
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
	// Device is the UUID, PCI the address (domain:bus:device); empty: NVML returned none.
	Device, PCI string
	// Lost: the device no longer answers. ResetRequired: every answer is that it needs a reset.
	Lost, ResetRequired bool
	// Recovery is the driver's recovery action or RecoveryUnknown.
	Recovery int
	// RemapPending: memory rows wait for a reset to be replaced. RemapFailed: there are no spare rows left.
	RemapPending, RemapFailed bool
	// Uncorrected counts memory errors since the driver was loaded that could not be corrected.
	Uncorrected uint64
	// LinksUp and LinksDown count its NVLinks by whether they are active; an unwired link is never active, so only a comparison is
	// meaningful. Both 0: none. LinksUnknown: they could not be counted now, and both numbers are invalid.
	LinksUp, LinksDown int
	LinksUnknown       bool
	// Width is the number of PCIe lanes in use, MaxWidth the most that GPU and slot support; Speed and MaxSpeed are the PCIe generation,
	// read at full clocks only; 0: unknown.
	Width, MaxWidth, Speed, MaxSpeed int
}

// bad reports whether the device cannot be used in its present state.
func (r Reading) bad() bool {
	return r.Lost || r.ResetRequired || r.Recovery > RecoveryNone
}

// WaitsForReset reports whether the device needs a reset before it reads well.
func (r Reading) WaitsForReset() bool { return r.bad() || r.RemapPending || r.RemapFailed }
