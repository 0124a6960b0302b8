package settings

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Bounds of a declared run time. A value beyond them is a typing error.
const (
	minRunTime = time.Second
	maxRunTime = 10 * 365 * 24 * time.Hour
)

// runTime parses a declared run time, and returns what is wrong with it.
func runTime(value string) (time.Duration, string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minRunTime || d > maxRunTime {
		return 0, `must be a duration from 1s, such as "36h": the longest that the job runs once its pods have started; remove the key if that is not known`
	}
	return d, ""
}

// RunTime returns the longest time that a pod declares to run; 0: it declares none. Of annotation and active deadline the shorter one
// counts.
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

// WouldEnd returns when a pod would end if it started now; zero: unknown.
func WouldEnd(pod *corev1.Pod, now time.Time) time.Time {
	if d := RunTime(pod); d > 0 {
		return now.Add(d)
	}
	return time.Time{}
}

// WillEnd returns when a pod that has its node will end; zero: unknown.
func WillEnd(pod *corev1.Pod, now time.Time) time.Time {
	if pod.Status.StartTime != nil {
		now = pod.Status.StartTime.Time
	}
	return WouldEnd(pod, now)
}
