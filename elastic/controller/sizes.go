package controller

import (
	"reflect"
	"time"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/quorum"
)

// sizesStatus is what a gang has learned about numbers of pods, as its status shows it; plainSizes is its inverse.
func sizesStatus(z elastic.Sizes) *v1alpha1.RunSizes {
	if reflect.ValueOf(z).IsZero() {
		return nil
	}
	s := &v1alpha1.RunSizes{Retried: z.Retried, AbsentMs: z.Absent.Milliseconds(), Since: microTime(z.Since),
		StartMs: z.Start.Milliseconds(), GrownAt: microTime(z.At), SnoozeMs: z.Snooze.Milliseconds()}
	for _, slot := range z.Came {
		s.Came = append(s.Came, int32(slot))
	}
	for _, k := range z.Struck {
		s.Struck = append(s.Struck, v1alpha1.StruckSize{Pods: int32(k.Pods), Generation: k.Generation, Message: k.Text})
	}
	return s
}

func plainSizes(s *v1alpha1.RunSizes) (z elastic.Sizes) {
	if s == nil {
		return z
	}
	z.Retried, z.Absent, z.Since = s.Retried, time.Duration(s.AbsentMs)*time.Millisecond, plainTime(s.Since)
	z.Start = time.Duration(s.StartMs) * time.Millisecond
	z.At, z.Snooze = plainTime(s.GrownAt), time.Duration(s.SnoozeMs)*time.Millisecond
	for _, slot := range s.Came {
		z.Came = append(z.Came, elastic.Slot(slot))
	}
	for _, k := range s.Struck {
		z.Struck = append(z.Struck, quorum.Struck{Pods: int(k.Pods), Generation: k.Generation, Text: k.Message})
	}
	return z
}
