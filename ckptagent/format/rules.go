package format

import "holdfast.dev/holdfast/internal/protocol"

// SlotReusable reports whether a slot sealed at step may be granted again, by the gang's levels: common is
// the newest step that every rank holds sealed, reclaimBelow the lowest that may be common one day beside it.
func SlotReusable(step, commonStep, reclaimBelow int64) bool {
	return step != commonStep && step < reclaimBelow
}

// Point is a step of a branch. What a restored one gives up is emptied before a generation starts (GivesUp).
type Point = protocol.Point
