package settings

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Bounds of a declared run time: outside them a value is a slip of the pen.
const (
	minRunTime = time.Second
	maxRunTime = 10 * 365 * 24 * time.Hour
)

// runTime reads a declared run time and says what is wrong with it.
func runTime(value string) (time.Duration, string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minRunTime || d > maxRunTime {
		return 0, `must be a duration from 1s, such as "36h": the longest that the job runs once its pods have started; remove the key if that is not known`
	}
	return d, ""
}

// RunTime is the longest that a pod says that it runs; 0: it does not say. Of annotation and active deadline the shorter
// one counts.
func RunTime(pod *corev1.Pod) time.Duration {
	said, problem := runTime(pod.Annotations[v1alpha1.AnnotationRunTime])
	if problem != "" {
		said = 0
	}
	if s := pod.Spec.ActiveDeadlineSeconds; s != nil {
		if deadline := time.Duration(*s) * time.Second; said == 0 || deadline < said {
			said = deadline
		}
	}
	return said
}

// WouldEnd is when a pod would be over if it started now; zero: nobody knows.
func WouldEnd(pod *corev1.Pod, now time.Time) time.Time {
	if d := RunTime(pod); d > 0 {
		return now.Add(d)
	}
	return time.Time{}
}

// WillEnd is when a pod that has its node will be over; zero: nobody knows.
func WillEnd(pod *corev1.Pod, now time.Time) time.Time {
	if pod.Status.StartTime != nil {
		now = pod.Status.StartTime.Time
	}
	return WouldEnd(pod, now)
}
