package format

// SlotReusable says whether a slot sealed at step may be granted again, by the gang's levels: common is
// the newest step that every rank holds sealed, reclaimBelow the lowest of all ranks' newest sealed steps.
func SlotReusable(step, commonStep, reclaimBelow int64) bool {
	return step != commonStep && step < reclaimBelow
}

// Abandoned says whether a sealed step belongs to a history that ends where a generation restores from
// restoreStep: it must be emptied before that generation starts.
func Abandoned(step, restoreStep int64) bool {
	return step > restoreStep
}
