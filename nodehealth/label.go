package nodehealth

import "slices"

// otherCause replaces every cause that this version does not know.
const otherCause = "Other"

// CauseLabel returns a cause as a metric's label. Causes come from annotations with any content, so a cause that is neither in the
// catalogue nor among others, which other components write, becomes otherCause: that bounds the number of time series.
func CauseLabel(cause string, others []string) string {
	if _, ok := RowOf(Cause(cause)); ok || cause == "" || slices.Contains(others, cause) {
		return cause
	}
	return otherCause
}
