package scheduling

import (
	"maps"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/handover"
)

// testHandOver: a gang that Volcano places gets its PodGroup, by the shipped rights and policies, if and as long as the API is served, and
// the group is removed with the Job. The test answers as Volcano would. Holdfast's scheduler does not touch the group.
func (a *asked) testHandOver(t *testing.T) {
	a.jobOfVolcano("volcanos")
	a.saying("volcanos", "the cluster serves no scheduling.volcano.sh/v1beta1")
	a.applyFile("testdata/volcano.yaml")
	u := a.groupOf("volcanos")
	least, _, _ := unstructured.NestedInt64(u.Object, "spec", "minMember")
	gpus, _, _ := unstructured.NestedString(u.Object, "spec", "minResources", string(gpu))
	if owner := metav1.GetControllerOf(u); least != squad || gpus != "32" || owner == nil || owner.Kind != "Job" {
		t.Errorf("made is %v", u.Object)
	}
	a.saying("volcanos", "PodGroup volcanos waits for Volcano to let it into queue default")
	a.volcanoSays(u, "Inqueue", "Unschedulable", "4/4 tasks in gang unschedulable")
	a.saying("volcanos", "Volcano does not place PodGroup volcanos of queue default: 4/4 tasks in gang unschedulable")
	if phase, _, _ := unstructured.NestedString(a.groupOf("volcanos").Object, "status", "phase"); phase != "Inqueue" {
		t.Errorf("the phase is %s, which Volcano did not write", phase)
	}
	a.bindAll("volcanos")
	a.volcanoSays(a.groupOf("volcanos"), "Running", "Scheduled", "")
	a.saying("volcanos", "all 4 pods are on nodes")
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "volcanos"}}
	if err := a.api.Delete(a.ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	a.until("the group to go with its Job", func() bool {
		return apierrors.IsNotFound(a.api.Get(a.ctx, client.ObjectKeyFromObject(u), u))
	})
}

// jobOfVolcano creates a Job whose pods Volcano places.
func (a *asked) jobOfVolcano(name string) {
	a.t.Helper()
	a.jobOf(name, func(pod *corev1.Pod) {
		maps.Copy(pod.Annotations, handover.Stamps(name, v1alpha1.RoleWorker))
		pod.Spec.SchedulerName = handover.Scheduler
	})
}

func (a *asked) groupOf(gang string) *unstructured.Unstructured {
	a.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(handover.Kind)
	a.until("the PodGroup of the gang", func() bool {
		return a.api.Get(a.ctx, client.ObjectKey{Namespace: "default", Name: gang}, u) == nil
	})
	return u
}

// volcanoSays writes a group's status as Volcano's scheduler does.
func (a *asked) volcanoSays(u *unstructured.Unstructured, phase, condition, message string) {
	a.t.Helper()
	u.Object["status"] = map[string]any{"phase": phase, "conditions": []any{map[string]any{
		"type": condition, "status": "True", "transitionID": "session", "message": message, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}}
	if err := a.api.Update(a.ctx, u); err != nil { // its status is no subresource
		a.t.Fatal(err)
	}
}

// bindAll binds a gang's pods.
func (a *asked) bindAll(gang string) {
	a.t.Helper()
	pods := &corev1.PodList{}
	if err := a.api.List(a.ctx, pods, client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelGang: gang}); err != nil {
		a.t.Fatal(err)
	}
	nodes := &corev1.NodeList{}
	if err := a.api.List(a.ctx, nodes); err != nil || len(nodes.Items) < len(pods.Items) {
		a.t.Fatalf("%d nodes for %d pods: %v", len(nodes.Items), len(pods.Items), err)
	}
	for i := range pods.Items {
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: nodes.Items[i].Name}}
		if err := a.api.SubResource("binding").Create(a.ctx, &pods.Items[i], binding); err != nil {
			a.t.Fatal(err)
		}
	}
}
