package webhook

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestPreStopTakesOfTheGrace: the kubelet runs a preStop hook before SIGTERM, within the pod's grace period. So the agent gets only the
// rest of it.
func TestPreStopTakesOfTheGrace(t *testing.T) {
	exec := func(argv ...string) corev1.LifecycleHandler {
		return corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: argv}}
	}
	for name, c := range map[string]struct {
		grace int64
		hook  corev1.LifecycleHandler
		want  string
		note  string
	}{
		"none":                   {60, corev1.LifecycleHandler{}, "60", ""},
		"sleep":                  {60, corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}}, "40", ""},
		"no sleep":               {60, corev1.LifecycleHandler{Sleep: &corev1.SleepAction{}}, "60", ""},
		"sleep for all of it":    {30, corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 30}}, "2", "terminationGracePeriodSeconds is 30, of which preStop uses 28: too short to copy the newest step to storage when a pod terminates; set it to 38 or more"},
		"a program that sleeps":  {60, exec("/bin/sleep", "15"), "45", ""},
		"a shell that sleeps":    {60, exec("/bin/sh", "-c", "sleep 5; sleep 10s"), "45", ""},
		"a shell with more":      {60, exec("/bin/sh", "-c", "sleep 5; curl -X POST localhost/stop"), "60", "takes an unknown part of terminationGracePeriodSeconds"},
		"a request":              {60, corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}}, "60", "takes an unknown part of terminationGracePeriodSeconds"},
		"a grace that is none":   {0, corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}, "0", "terminationGracePeriodSeconds is 0: too short"},
		"a sleep of no duration": {60, exec("sleep", "infinity"), "60", "takes an unknown part of terminationGracePeriodSeconds"},
	} {
		pod := injected(t, job(t, storage("ckpt"), podSpec(func(s *corev1.PodSpec) {
			s.TerminationGracePeriodSeconds = ptr.To(c.grace)
			if c.hook != (corev1.LifecycleHandler{}) {
				s.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &c.hook}
			}
		})))
		said := pod.Annotations[v1alpha1.AnnotationInjection]
		if got := envOf(pod, "HOLDFAST_GRACE_SECONDS"); got != c.want || !strings.Contains(said, c.note) || strings.Contains(said, `"notes"`) != (c.note != "") {
			t.Errorf("%s: %s seconds, want %s; %s", name, got, c.want, said)
		}
	}
}

// TestVolumesKeepNoNode: Holdfast's volumes are listed beside those of the user.
func TestVolumesKeepNoNode(t *testing.T) {
	for was, want := range map[string]string{"": "holdfast,holdfast-memory,holdfast-shm", "scratch, holdfast": "scratch,holdfast,holdfast-memory,holdfast-shm"} {
		changes := []func(*batchv1.Job){withoutShm}
		if was != "" {
			changes = append(changes, annotateTemplate(localVolumesKey, was))
		}
		if got := injected(t, job(t, changes...)).Annotations[localVolumesKey]; got != want {
			t.Errorf("%q became %q", was, got)
		}
	}
}
