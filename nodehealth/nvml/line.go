package nvml

import (
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// line is one JSON object of the child's output. Parent and child are the same file, so it has no version.
type line struct {
	// Readings has every device; an empty, non-nil list: there is no device.
	Readings []nodehealth.Reading `json:"readings,omitempty"`
	Read     bool                 `json:"read,omitempty"`
	// Took is how long NVML took to answer for all of them.
	Took time.Duration `json:"took,omitempty"`
	// Xid is an error that the driver reported for Device.
	Xid    int    `json:"xid,omitempty"`
	Device string `json:"device,omitempty"`
	// Blind is why nothing can be queried.
	Blind string `json:"blind,omitempty"`
}
