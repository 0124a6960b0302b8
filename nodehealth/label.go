package nodehealth

import "slices"

// otherCause stands for every cause that this version does not know.
const otherCause = "Other"

// CauseLabel is a cause as the label of a metric. Causes come from annotations, in which anything may stand, so one that is
// neither in the catalogue nor among others, which other parts write, is told as one word: the number of time series has a bound.
func CauseLabel(cause string, others []string) string {
	if _, ok := RowOf(Cause(cause)); ok || cause == "" || slices.Contains(others, cause) {
		return cause
	}
	return otherCause
}
