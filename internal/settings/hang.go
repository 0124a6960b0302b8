package settings

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Bounds of AnnotationHangTimeout: no gang is looked at before it has made no step for some ten seconds, or a minute in its start.
const (
	minHangTimeout = 2 * time.Minute
	maxHangTimeout = 7 * 24 * time.Hour
)

// parseHangTimeout parses the longest time without a step, and returns what is wrong with the value.
func parseHangTimeout(value string) (time.Duration, string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minHangTimeout || d > maxHangTimeout || d%time.Second != 0 {
		return 0, `must be a duration in whole seconds, from "2m" to "168h", longer than all that the script does between two steps, such as "30m"; ` +
			`remove the key to end no rank that computes`
	}
	return d, ""
}

// checkHang refuses a timeout that would end nothing; at has the path of each key.
func (s *Settings) checkHang(at map[string]*field.Path) field.ErrorList {
	if s.HangTimeout == 0 || s.Hang == "" || s.Hang == v1alpha1.HangAct || !s.Enabled {
		return nil
	}
	return field.ErrorList{field.Invalid(at[v1alpha1.AnnotationHangTimeout], s.HangTimeout.String(),
		"has no effect with "+v1alpha1.AnnotationHang+`: "`+s.Hang+`", which ends no rank: remove one of the two keys`)}
}
