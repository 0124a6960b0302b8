package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/membership"
)

// foreign has, for each kind of another project, an object with a status as the kind's controller writes it (running). A policy lets
// Holdfast's controller only make such an object fail.
var foreign = []struct {
	kind    kinds.Kind
	policy  string
	running map[string]any
	// ended is the status of an object that has ended; wrong is a status that only the kind's controller may write.
	ended, wrong map[string]any
}{
	{
		kind:    kinds.VolcanoJob{},
		policy:  "holdfast-controller-volcano-jobs",
		running: map[string]any{"state": map[string]any{"phase": "Running"}, "running": int64(4), "retryCount": int64(0), "version": int64(0)},
		ended:   map[string]any{"state": map[string]any{"phase": "Completed"}},
		wrong:   map[string]any{"state": map[string]any{"phase": "Completed"}},
	},
	{
		kind:   kinds.JobSet{},
		policy: "holdfast-controller-jobsets",
		running: map[string]any{
			"restarts":   int64(0),
			"conditions": []any{map[string]any{"type": "StartupPolicyCompleted", "status": "True"}},
		},
		ended: map[string]any{"terminalState": "Completed"},
		wrong: map[string]any{"conditions": []any{map[string]any{"type": "StartupPolicyCompleted", "status": "False"}}},
	},
	{
		kind:   kinds.PyTorchJob{},
		policy: "holdfast-controller-pytorchjobs",
		running: map[string]any{
			"replicaStatuses": map[string]any{"Worker": map[string]any{"active": int64(3)}},
			"startTime":       "2026-11-28T12:00:00Z",
			"conditions": []any{
				map[string]any{"type": "Created", "status": "True"},
				map[string]any{"type": "Running", "status": "True", "reason": "R", "message": "m", "lastUpdateTime": "2026-11-28T12:00:00Z"},
			},
		},
		ended: map[string]any{"completionTime": "2026-11-28T13:00:00Z"},
		wrong: map[string]any{"conditions": []any{
			map[string]any{"type": "Created", "status": "True"},
			map[string]any{"type": "Running", "status": "False", "reason": "another", "message": "m", "lastUpdateTime": "2026-11-28T12:00:00Z"},
		}},
	},
}

// laid returns an object with a patch merged into it.
func laid(u *unstructured.Unstructured, patch map[string]any) *unstructured.Unstructured {
	var over func(a, b map[string]any)
	over = func(a, b map[string]any) {
		for key, value := range b {
			next, is := value.(map[string]any)
			had, was := a[key].(map[string]any)
			if is && was {
				over(had, next)
			} else {
				a[key] = value
			}
		}
	}
	after := u.DeepCopy()
	over(after.Object, patch)
	return after
}

// TestTheControllerFailsObjectsAlone: of an opted-in object of another project's kind the controller may write what makes it fail, as
// internal/kinds writes it. Every other field stays, also one that the policy does not know.
func TestTheControllerFailsObjectsAlone(t *testing.T) {
	for _, f := range foreign {
		t.Run(f.policy, func(t *testing.T) {
			refusal := judge(t, f.policy)
			status := f.kind.Resource() + "/status"
			old := jobstest.Object(f.kind, types.NamespacedName{Namespace: "ns", Name: "name"}, "uid", func(u *unstructured.Unstructured) {
				u.Object["status"] = f.running
				u.SetLabels(map[string]string{"a": "b"})
			})
			fails := laid(old, f.kind.Fail(old, kinds.Failure{Reason: "NoProgress", Message: "rank 3 failed first", At: time.Unix(1, 0), Now: true}).Patch)
			ask := func(by, resource string, old, now *unstructured.Unstructured) string {
				r := request{by: by, kind: f.kind.GroupVersionKind(), resource: resource, obj: now}
				if old != nil {
					r.old = old
				}
				return refusal(r)
			}
			for _, by := range []string{controllerAccount, "system:serviceaccount:other:blue-holdfast-controller-2", "kubernetes-admin"} {
				if got := ask(by, status, old, fails); got != "" {
					t.Errorf("what internal/kinds writes is refused to %s: %s", by, got)
				}
			}
			if got := ask(controllerAccount, status, old, old); got != "" {
				t.Errorf("no change is refused: %s", got)
			}
			plain := old.DeepCopy()
			plain.Object["spec"] = map[string]any{}
			for name, c := range map[string]struct {
				resource string
				old, now *unstructured.Unstructured
				want     string
			}{
				"by the object itself":  {f.kind.Resource(), old, fails, "but its status"},
				"by the scale":          {f.kind.Resource() + "/scale", old, fails, "but its status"},
				"not opted in":          {status, plain, laid(plain, map[string]any{"status": fails.Object["status"]}), "opted in at their creation"},
				"another label":         {status, old, laid(fails, map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "c"}}}), "neither the metadata nor the spec"},
				"another annotation":    {status, old, laid(fails, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "c"}}}), "neither the metadata nor the spec"},
				"a finalizer":           {status, old, laid(fails, map[string]any{"metadata": map[string]any{"finalizers": []any{"a/b"}}}), "neither the metadata nor the spec"},
				"an owner":              {status, old, laid(fails, map[string]any{"metadata": map[string]any{"ownerReferences": []any{map[string]any{"name": "x"}}}}), "neither the metadata nor the spec"},
				"the spec":              {status, old, laid(fails, map[string]any{"spec": map[string]any{"suspend": true}}), "neither the metadata nor the spec"},
				"a field not known yet": {status, old, laid(fails, map[string]any{"status": map[string]any{"x": "y"}}), "nothing of the status"},
				"another end":           {status, old, laid(old, map[string]any{"status": f.wrong}), "holdfast-controller may"},
			} {
				if got := ask(controllerAccount, c.resource, c.old, c.now); !strings.Contains(got, c.want) {
					t.Errorf("%s: %q, want %q", name, got, c.want)
				}
				if got := ask("kubernetes-admin", c.resource, c.old, c.now); got != "" {
					t.Errorf("%s: people may not: %s", name, got)
				}
			}
			for field := range f.running {
				now := fails.DeepCopy()
				if unstructured.RemoveNestedField(now.Object, "status", field); ask(controllerAccount, status, old, now) == "" {
					t.Errorf("it may erase status.%s", field)
				}
			}
			if ask(controllerAccount, f.kind.Resource(), nil, old) == "" {
				t.Error("it may create one")
			}
			if had := laid(old, map[string]any{"status": f.ended}); ask(controllerAccount, status, had, fails) == "" {
				t.Errorf("it may undo the end that %v says", f.ended)
			}
		})
	}
}

// TestTheControllerMarksPodsOfVolcano: on a pod that leaves its job the controller may set one annotation, with one value. Volcano then
// treats the pod as one of an earlier version.
func TestTheControllerMarksPodsOfVolcano(t *testing.T) {
	refusal := judge(t, "holdfast-controller-pods")
	const key, out = "volcano.sh/job-version", "holdfast.dev/replaced"
	of := func(labels map[string]string, version string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"holdfast.dev/gang": "g", "volcano.sh/job-name": "g"},
			Annotations: map[string]string{key: version, "volcano.sh/task-spec": "worker"},
		}}
		maps.Copy(pod.Labels, labels)
		return pod
	}
	taken := map[string]string{out: "true"}
	noted := func(pod *corev1.Pod) *corev1.Pod {
		pod.Annotations["holdfast.dev/ended-by-node"] = "Evicted"
		return pod
	}
	for name, c := range map[string]struct {
		now  *corev1.Pod
		want string
	}{
		"taken out":              {of(taken, "-1"), ""},
		"taken out, ended":       {noted(of(taken, "-1")), ""},
		"ended and not taken":    {noted(of(nil, "0")), "only to take it out of its Job"},
		"taken out, not marked":  {of(taken, "0"), ""},
		"marked and not taken":   {of(nil, "-1"), "only to take it out of its Job"},
		"of another version":     {of(taken, "7"), "volcano.sh/job-version to -1"},
		"of an invented version": {of(taken, "-2"), "volcano.sh/job-version to -1"},
		"another key of Volcano's": {func() *corev1.Pod {
			pod := of(taken, "-1")
			pod.Annotations["volcano.sh/task-spec"] = "-1"
			return pod
		}(), "may change no annotation"},
	} {
		got := refusal(request{by: controllerAccount, kind: podKind, resource: "pods", obj: c.now, old: of(nil, "0")})
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTheControllerReadsOtherKinds: the controller may read and watch each supported kind and write its status, and nothing else of it. Of
// CustomResourceDefinitions it may read only those of these kinds.
func TestTheControllerReadsOtherKinds(t *testing.T) {
	verbs := map[string]string{}
	var defined, named []string
	for _, r := range find[rbacv1.ClusterRole](t, "holdfast-controller").Rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				verbs[group+" "+resource] = fmt.Sprint(r.Verbs)
				if resource == "customresourcedefinitions" {
					named = r.ResourceNames
				}
			}
		}
	}
	for _, kind := range kinds.Served() {
		at := kind.GroupVersionKind().Group + " " + kind.Resource()
		reads := "[get list watch]"
		if kind == (kinds.Kind)(kinds.BatchJob{}) {
			reads = "[get list watch patch]" // backoffLimit, and an annotation
		} else {
			defined = append(defined, kind.Resource()+"."+kind.GroupVersionKind().Group)
		}
		if verbs[at] != reads || verbs[at+"/status"] != "[patch]" || verbs[at+"/finalizers"] != "[update]" {
			t.Errorf("%s: %s, status %s, finalizers %s", at, verbs[at], verbs[at+"/status"], verbs[at+"/finalizers"])
		}
	}
	if got := verbs["apiextensions.k8s.io customresourcedefinitions"]; got != "[get]" || !slices.Equal(named, defined) {
		t.Errorf("definitions: %s of %v, want %v", got, named, defined)
	}
}

// TestTheControllerHidesPods: PyTorchJob's operator finds a pod by a label. The controller may remove that label and set it again, only to
// the gang's name, and change nothing else in the same write.
func TestTheControllerHidesPods(t *testing.T) {
	refusal := judge(t, "holdfast-controller-pods")
	const key = "training.kubeflow.org/job-name"
	of := func(labels, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: meta(labels, annotations)}
	}
	shown, hidden := map[string]string{"holdfast.dev/gang": "g", key: "g"}, map[string]string{"holdfast.dev/gang": "g"}
	for name, c := range map[string]struct {
		old, now *corev1.Pod
		want     string
	}{
		"hidden":            {of(shown, nil), of(hidden, nil), ""},
		"shown":             {of(hidden, nil), of(shown, nil), ""},
		"another job's":     {of(hidden, nil), of(map[string]string{"holdfast.dev/gang": "g", key: "h"}, nil), "or to hide it"},
		"another label too": {of(shown, nil), of(map[string]string{"holdfast.dev/gang": "g", "a": "b"}, nil), "or to hide it"},
		"annotated too":     {of(shown, nil), of(hidden, map[string]string{"holdfast.dev/eviction-refused": "x"}), "or to hide it"},
		"of no gang":        {of(map[string]string{key: "g"}, nil), of(nil, nil), "pods of gangs alone"},
		"out of its gang":   {of(shown, nil), of(map[string]string{key: "g"}, nil), "or to hide it"},
	} {
		got := refusal(request{by: controllerAccount, kind: podKind, resource: "pods", obj: c.now, old: c.old})
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestWebhookIsAskedAboutLeavingPods: the API server calls the webhook only for deletions of members that an operator finds by that label.
func TestWebhookIsAskedAboutLeavingPods(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   bool
	}{
		"a member":           {map[string]string{"holdfast.dev/gang": "g", "training.kubeflow.org/job-name": "g"}, true},
		"released":           {map[string]string{"holdfast.dev/gang": "g", "training.kubeflow.org/job-name": "g", "holdfast.dev/replaced": "true"}, false},
		"hidden":             {map[string]string{"holdfast.dev/gang": "g"}, false},
		"the operator's own": {map[string]string{"training.kubeflow.org/job-name": "g"}, false},
		"bare":               {nil, false},
	} {
		pod := &corev1.Pod{ObjectMeta: meta(c.labels, nil)}
		if got := asked(t, "pod-deletions.holdfast.dev", podKind, pod, pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestWebhookIsAskedAboutEndedPods: the API server calls the webhook for the reasons that membership.NodeEnds knows, once for a pod, and
// only for members.
func TestWebhookIsAskedAboutEndedPods(t *testing.T) {
	gang := map[string]string{"holdfast.dev/gang": "g"}
	var containers []corev1.ContainerStatus
	var conditions []corev1.PodCondition
	ask := func(labels map[string]string, was, now corev1.PodPhase, reason string) bool {
		status := corev1.PodStatus{Phase: was, ContainerStatuses: containers, Conditions: conditions}
		before := &corev1.Pod{ObjectMeta: meta(labels, nil), Status: status}
		after := before.DeepCopy()
		after.Status.Phase, after.Status.Reason = now, reason
		return asked(t, "pod-ends.holdfast.dev", podKind, after, before)
	}
	for _, reason := range []string{
		"", "OutOfcpu", "OutOfpods", "OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts",
		"TaintToleration", "AdmissionError", "VolumeAttachmentLimitExceeded", "Evicted", "Terminated", "NodeShutdown", "Preempting",
		"DeadlineExceeded", "SysctlForbidden", "AppArmor", "PodOSNotSupported", "NodeLost", "Error",
	} {
		if got := ask(gang, corev1.PodPending, corev1.PodFailed, reason); got != membership.NodeEnds(corev1.PodStatus{Reason: reason}) {
			t.Errorf("reason %q: asked %v", reason, got)
		}
	}
	containers = []corev1.ContainerStatus{{Name: "trainer"}}
	if ask(gang, corev1.PodRunning, corev1.PodFailed, "Evicted") {
		t.Error("a pod over a limit of its own: asked")
	}
	conditions = []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet},
	}
	for name, got := range map[string]bool{
		"it ran":           !ask(gang, corev1.PodRunning, corev1.PodFailed, "Evicted"),
		"it had none":      !ask(gang, "", corev1.PodFailed, "Evicted"),
		"it runs":          ask(gang, corev1.PodRunning, corev1.PodRunning, "Evicted"),
		"reported already": ask(gang, corev1.PodFailed, corev1.PodFailed, "Evicted"),
		"it succeeded":     ask(gang, corev1.PodSucceeded, corev1.PodFailed, "Evicted"),
		"of no gang":       ask(nil, corev1.PodRunning, corev1.PodFailed, "Evicted"),
		"released": ask(map[string]string{"holdfast.dev/gang": "g", "holdfast.dev/replaced": "true"},
			corev1.PodRunning, corev1.PodFailed, "Evicted"),
	} {
		if got {
			t.Errorf("%s: wrong", name)
		}
	}
}
