package webhook

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

const writtenByUs = "is written only by holdfast: remove it"

// checkSystemKeys refuses keys that only Holdfast writes, other than with the values in written.
func checkSystemKeys(values, written map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(values)) {
		want, ours := written[key]
		if settings.IsSystemKey(key) && (!ours || want != values[key]) {
			errs = append(errs, field.Invalid(path.Key(key), values[key], writtenByUs))
		}
	}
	return errs
}

// checkLabels refuses labels under our prefix other than those in written.
func checkLabels(labels, written map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !strings.HasPrefix(key, v1alpha1.Prefix) {
			continue
		}
		want, ours := written[key]
		switch {
		case ours && want == labels[key]:
		case settings.IsUserKey(key):
			errs = append(errs, field.Invalid(path.Key(key), labels[key], "must be an annotation: move it from labels to annotations"))
		case settings.IsSystemKey(key):
			errs = append(errs, field.Invalid(path.Key(key), labels[key], writtenByUs))
		default:
			errs = append(errs, field.Invalid(path.Key(key), labels[key], "is not a label that holdfast knows: remove it"))
		}
	}
	return errs
}

// setKey returns m with the key set, making m if there is none.
func setKey(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
