package nvml

import (
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

// line is what the child tells on its standard output, one JSON object each. It is private to one binary,
// parent and child are the same file, so it has no version.
type line struct {
	// Readings has every device; a list that is there but empty means that there is none.
	Readings []nodehealth.Reading `json:"readings,omitempty"`
	Read     bool                 `json:"read,omitempty"`
	// Took is how long NVML took to answer for all of them.
	Took time.Duration `json:"took,omitempty"`
	// Xid is an error that the driver reported of Device.
	Xid    int    `json:"xid,omitempty"`
	Device string `json:"device,omitempty"`
	// Blind is why nothing can be asked.
	Blind string `json:"blind,omitempty"`
}
