package format

// SlotReusable says whether a slot sealed at step may be granted again, by the gang's levels: common is
// the newest step that every rank holds sealed, reclaimBelow the lowest that may be common one day beside it.
func SlotReusable(step, commonStep, reclaimBelow int64) bool {
	return step != commonStep && step < reclaimBelow
}

// Point is a step of a branch.
type Point struct{ Branch, Step int64 }

// Abandoned says whether a sealed step must be emptied before a generation starts that restores that point: it belongs to a
// history that ends there, or to an older branch, of which nothing is needed any more.
func Abandoned(sealed, restore Point) bool {
	return sealed.Branch != restore.Branch || sealed.Step > restore.Step
}
