// Package plugintest builds pods and nodes for tests of the scheduler's plugin.
package plugintest

import (
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// GPU is the device that pods request.
const GPU = "nvidia.com/gpu"

// Node returns a node with that many devices.
func Node(name string, gpus int64) *v1.Node {
	list := v1.ResourceList{
		GPU:               *resource.NewQuantity(gpus, resource.DecimalSI),
		v1.ResourceCPU:    resource.MustParse("64"),
		v1.ResourceMemory: resource.MustParse("64Gi"),
		v1.ResourcePods:   resource.MustParse("110"),
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status:     v1.NodeStatus{Allocatable: list, Capacity: list},
	}
}

// Labelled sets a label on a node.
func Labelled(n *v1.Node, key, value string) *v1.Node {
	n.Labels[key] = value
	return n
}

var uids struct {
	sync.Mutex
	n int
}

// Pod returns a pod of no gang, with its own UID, that requests that many devices.
func Pod(name string, gpus int64) *v1.Pod {
	uids.Lock()
	uids.n++
	uid := types.UID(fmt.Sprintf("%s-%d", name, uids.n))
	uids.Unlock()
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, ResourceVersion: "1"},
		Spec: v1.PodSpec{SchedulerName: v1alpha1.SchedulerName, Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{
				GPU: *resource.NewQuantity(gpus, resource.DecimalSI),
			}, Limits: v1.ResourceList{GPU: *resource.NewQuantity(gpus, resource.DecimalSI)}}}}},
	}
}

// Member returns the pod of a gang's slot.
func Member(gangName string, slot, size int, gpus int64) *v1.Pod {
	p := Pod(fmt.Sprintf("%s-%d", gangName, slot), gpus)
	p.Labels = map[string]string{v1alpha1.LabelGang: gangName, "batch.kubernetes.io/job-completion-index": fmt.Sprint(slot)}
	p.Annotations = map[string]string{v1alpha1.AnnotationGangSize: fmt.Sprint(size), v1alpha1.AnnotationGangSlot: fmt.Sprint(slot)}
	return p
}

// Gang returns all pods of a gang.
func Gang(name string, size int, gpus int64) []*v1.Pod {
	var pods []*v1.Pod
	for slot := range size {
		pods = append(pods, Member(name, slot, size, gpus))
	}
	return pods
}

// On sets a pod's node, as if another scheduler had bound it.
func On(p *v1.Pod, node string) *v1.Pod {
	p.Spec.NodeName = node
	return p
}

// Asking sets an annotation on a pod.
func Asking(p *v1.Pod, key, value string) *v1.Pod {
	p.Annotations[key] = value
	return p
}

// Created sets a pod's creation time.
func Created(p *v1.Pod, at time.Time) *v1.Pod {
	p.CreationTimestamp.Time = at
	return p
}

// OwnedBy makes a Job, given by its UID, the owner of a pod.
func OwnedBy(job string, p *v1.Pod) *v1.Pod {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: types.UID(job), Controller: &yes}}
	p.Spec.Containers[0].Env = []v1.EnvVar{{Name: membership.JobVariable, Value: job}}
	return p
}

// Key returns the key of a gang in the namespace of all pods here.
func Key(gang string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: gang}
}

// At returns a time.
func At(second int64) time.Time { return time.Unix(second, 0) }
