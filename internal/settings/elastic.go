package settings

import (
	"fmt"
	"strconv"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// maxShrinkAfter bounds AnnotationShrinkAfter.
const maxShrinkAfter = 24 * time.Hour

// parseMinPods parses the least number of pods, and returns what is wrong with the value.
func parseMinPods(value string) (int32, string) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 || n > v1alpha1.MaxMembers {
		return 0, fmt.Sprintf("must be the least number of pods with which training goes on, 1 to %d; remove the key if all pods are needed", v1alpha1.MaxMembers)
	}
	return int32(n), ""
}

// parsePodsUnit parses the number of pods of a block, and returns what is wrong with the value.
func parsePodsUnit(value string) (int32, string) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 || n > v1alpha1.MaxMembers {
		return 0, fmt.Sprintf("must be a number of consecutive pods that train only together, 1 to %d; remove the key if any number of pods can train", v1alpha1.MaxMembers)
	}
	return int32(n), ""
}

// parseShrinkAfter parses how long a pod is waited for whose coming cannot be foretold, and returns what is wrong with the value.
func parseShrinkAfter(value string) (time.Duration, string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Second || d > maxShrinkAfter || d%time.Second != 0 {
		return 0, `must be a duration in whole seconds, from "1s" to "24h", such as "30s"`
	}
	return d, ""
}

// stampedMin reads the stamp of the least number of pods of a gang; 0: all are needed.
func stampedMin(annotations map[string]string, members int32) int32 {
	return stamped(annotations, v1alpha1.AnnotationGangMin, members-1)
}

// stamped reads a stamped number of pods; 0: there is none from 1 to most.
func stamped(annotations map[string]string, key string, most int32) int32 {
	n, err := strconv.ParseInt(annotations[key], 10, 32)
	if err != nil || n < 1 || int32(n) > most {
		return 0
	}
	return int32(n)
}
