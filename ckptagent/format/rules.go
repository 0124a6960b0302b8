package format

import "holdfast.dev/holdfast/internal/protocol"

// SlotReusable reports whether a slot sealed at step may be granted again. The gang's common step stays, as do steps from reclaimBelow on,
// which may become common.
func SlotReusable(step, commonStep, reclaimBelow int64) bool {
	return step != commonStep && step < reclaimBelow
}

// Point is a step of a branch. Slots that a restored point gives up (GivesUp) are emptied before a generation starts.
type Point = protocol.Point
