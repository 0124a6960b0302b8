package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/protocol"
)

// Bounds of the steps that are kept by time: at most MaxKeptEvery steps, a minute to a year apart.
const (
	minKeepEvery = time.Minute
	maxKeepEvery = 365 * 24 * time.Hour
)

// parseKeep parses how many steps stay, and returns what is wrong with the value.
func parseKeep(value string) (int32, string) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < v1alpha1.MinKept || n > v1alpha1.MaxKept || strconv.FormatInt(n, 10) != value {
		return 0, fmt.Sprintf("must be how many of the newest steps stay in storage, %d to %d: each takes room in the claim; to keep single ones beyond that pin them", v1alpha1.MinKept, v1alpha1.MaxKept)
	}
	return int32(n), ""
}

// parseKeepEvery parses the interval of the steps that stay, and returns what is wrong with the value.
func parseKeepEvery(value string) (time.Duration, string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minKeepEvery || d > maxKeepEvery || d%time.Second != 0 {
		return 0, fmt.Sprintf(`must be a duration in whole seconds, from "1m" to "8760h", such as "1h": one step per such a time stays, the newest %d of them`, v1alpha1.MaxKeptEvery)
	}
	return d, ""
}

// parsePins parses a list of steps, and returns what is wrong with it. An empty list pins nothing.
func parsePins(value string) ([]protocol.Mark, string) {
	const form = `must be steps as kubectl holdfast ckpt ls shows them, STEP@GENERATION with commas between, such as "120@3,180@3"`
	if strings.TrimSpace(value) == "" {
		return nil, ""
	}
	var pins []protocol.Mark
	for text := range strings.SplitSeq(value, ",") {
		step, generation, found := strings.Cut(strings.TrimSpace(text), "@")
		m := protocol.Mark{Step: positive(step), Generation: positive(generation)}
		if !found || m.Step == 0 || m.Generation == 0 || m.Generation > protocol.MaxGeneration {
			return nil, form
		}
		if !slices.Contains(pins, m) {
			pins = append(pins, m)
		}
		if len(pins) > v1alpha1.MaxPins {
			return nil, fmt.Sprintf("pins more than %d steps, and each takes room in the claim for as long as it is pinned: take off what is not needed any more, or have it written elsewhere by kubectl holdfast ckpt export first", v1alpha1.MaxPins)
		}
	}
	return pins, ""
}

// positive parses a number as PinsText writes it; 0: the text is no such number.
func positive(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != text {
		return 0
	}
	return n
}

// SetPins writes a job's pins; without pins it removes the annotation.
func SetPins(job metav1.Object, pins []protocol.Mark) {
	text := ""
	if len(pins) > 0 {
		text = PinsText(pins)
	}
	setAnnotation(job, v1alpha1.AnnotationPinnedCheckpoints, text)
}

// SetPinWish writes the number of the request that set a job's pins; 0 removes the annotation.
func SetPinWish(job metav1.Object, wish int64) {
	text := ""
	if wish != 0 {
		text = strconv.FormatInt(wish, 10)
	}
	setAnnotation(job, v1alpha1.AnnotationPinWish, text)
}

// setAnnotation writes an annotation; an empty value removes it.
func setAnnotation(job metav1.Object, key, value string) {
	all := job.GetAnnotations()
	switch {
	case value == "":
		delete(all, key)
	case all == nil:
		job.SetAnnotations(map[string]string{key: value})
	default:
		all[key] = value
	}
}

// CheckPinsOfTemplate refuses pins on a template, where they could not be changed.
func CheckPinsOfTemplate(annotations map[string]string) *field.Error {
	value, there := annotations[v1alpha1.AnnotationPinnedCheckpoints]
	if !there {
		return nil
	}
	return field.Invalid(TemplateAnnotations.Key(v1alpha1.AnnotationPinnedCheckpoints), value,
		"a template cannot change, and pins do: write it under metadata.annotations of the Job itself, once there is a step to pin")
}

// PinsText returns pins in the form that parsePins reads.
func PinsText(pins []protocol.Mark) string {
	texts := make([]string, len(pins))
	for i, m := range pins {
		texts[i] = fmt.Sprintf("%d@%d", m.Step, m.Generation)
	}
	return strings.Join(texts, ",")
}
