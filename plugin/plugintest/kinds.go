package plugintest

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Steering is the label of nodes for pods that use no devices; each of these takes more than half of a Node's cores.
const Steering = "steering"

var cores = resource.MustParse("40")

// PyTorchJob are the pods of one, as training-operator and admission leave them: a master that uses no devices, and workers.
func PyTorchJob(name string, workers int, gpus int64) []*v1.Pod {
	pods := Gang(name, workers+1, gpus)
	for slot, p := range pods {
		role, index := "worker", slot-1
		if slot == 0 {
			role, index = "master", 0
			pods[0] = steering(p)
			pods[0].Labels["training.kubeflow.org/job-role"] = "master"
		}
		ofRole(pods[slot], role, map[string]string{
			"training.kubeflow.org/job-name":      name,
			"training.kubeflow.org/operator-name": "pytorchjob-controller",
			"training.kubeflow.org/replica-type":  role,
			"training.kubeflow.org/replica-index": fmt.Sprint(index),
		})
		delete(pods[slot].Labels, "batch.kubernetes.io/job-completion-index")
	}
	return pods
}

// JobSet are the pods of one: a leader that uses no devices, and several Jobs of workers.
func JobSet(name string, jobs, each int, gpus int64) []*v1.Pod {
	pods := Gang(name, 1+jobs*each, gpus)
	for slot := range pods {
		role, job, index, replicas := "workers", (slot-1)/each, (slot-1)%each, jobs
		if slot == 0 {
			role, job, index, replicas = "leader", 0, 0, 1
			pods[0] = steering(pods[0])
		}
		child, global := fmt.Sprintf("%s-%s-%d", name, role, job), 0
		if slot > 0 {
			global = job + 1
		}
		ofRole(pods[slot], role, map[string]string{
			"jobset.sigs.k8s.io/jobset-name":            name,
			"jobset.sigs.k8s.io/jobset-uid":             name,
			"jobset.sigs.k8s.io/replicatedjob-name":     role,
			"jobset.sigs.k8s.io/replicatedjob-replicas": fmt.Sprint(replicas),
			"jobset.sigs.k8s.io/global-replicas":        fmt.Sprint(jobs + 1),
			"jobset.sigs.k8s.io/restart-attempt":        "0",
			"jobset.sigs.k8s.io/job-index":              fmt.Sprint(job),
			"jobset.sigs.k8s.io/job-global-index":       fmt.Sprint(global),
			"jobset.sigs.k8s.io/job-key":                "key-of-" + child,
			"jobset.sigs.k8s.io/group-name":             "default",
			"jobset.sigs.k8s.io/group-replicas":         fmt.Sprint(jobs + 1),
			"jobset.sigs.k8s.io/job-group-index":        fmt.Sprint(global),
			"job-name":                                  child,
			"batch.kubernetes.io/job-name":              child,
			"controller-uid":                            "uid-of-" + child,
			"batch.kubernetes.io/controller-uid":        "uid-of-" + child,
			"batch.kubernetes.io/job-completion-index":  fmt.Sprint(index),
		})
	}
	return pods
}

func ofRole(p *v1.Pod, role string, labels map[string]string) {
	maps.Copy(p.Labels, labels)
	p.Annotations[v1alpha1.AnnotationGangRole] = role
}

// steering has a pod use no devices, and run where such pods do.
func steering(p *v1.Pod) *v1.Pod {
	p.Spec.NodeSelector = map[string]string{Steering: "true"}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: cores}}
	return p
}
