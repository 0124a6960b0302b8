package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

//go:embed train.py
var trainScript string

const (
	namespace = "bench-kinds"
	// state is the claim to which the script saves.
	state = "state"
	// ranks is the number of pods, each with one rank and all gpus of its node.
	ranks, gpus = 2, 2
	pause       = "0.05"
	port        = 29500
)

// kind is a kind of job: what a user writes in its file, with the usual policy by which its own controller restarts the job.
type kind struct {
	name string
	// operator has its controller; nil: Kubernetes.
	operator *operators.Operator
	// container is the name that the kind requires for the container that trains.
	container string
	// scheduler places the pods without Holdfast; "": Kubernetes' own.
	scheduler string
	// rank and master are, in a pod's command, its rank and the host of rank 0.
	rank, master string
	// file has NAME, ANNOTATIONS, PODS (a pod's specification) and SCHEDULER.
	file string
}

var kinds = []kind{
	{
		name:      "Job",
		container: lives.Container,
		rank:      "$JOB_COMPLETION_INDEX",
		master:    "NAME-0.NAME",
		file: `
{apiVersion: v1, kind: Service, metadata: {name: NAME},
  spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {batch.kubernetes.io/job-name: NAME}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, annotations: ANNOTATIONS}
spec: {completionMode: Indexed, completions: 2, parallelism: 2, backoffLimit: 100, template: {spec: PODS}}
`,
	},
	{
		name:      "JobSet",
		operator:  operators.JobSet,
		container: lives.Container,
		rank:      "$JOB_COMPLETION_INDEX",
		master:    "NAME-workers-0-0.NAME",
		file: `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: NAME, annotations: ANNOTATIONS}
spec:
  failurePolicy: {maxRestarts: 100}
  replicatedJobs:
  - name: workers
    template: {spec: {completionMode: Indexed, completions: 2, parallelism: 2, backoffLimit: 0, template: {spec: PODS}}}
`,
	},
	{
		name:      "PyTorchJob",
		operator:  operators.TrainingOperator,
		container: "pytorch",
		rank:      "$RANK",
		master:    "$MASTER_ADDR",
		file: `
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: NAME, annotations: ANNOTATIONS}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: OnFailure, template: {spec: PODS}}
    Worker: {replicas: 1, restartPolicy: OnFailure, template: {spec: PODS}}
`,
	},
	{
		name:      "Volcano Job",
		operator:  operators.Volcano,
		container: lives.Container,
		scheduler: "volcano",
		rank:      "$RANK",
		master:    "$MASTER_ADDR",
		file: `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: NAME, annotations: ANNOTATIONS}
spec:
  schedulerName: SCHEDULER
  minAvailable: 2
  maxRetry: 100
  policies: [{event: PodFailed, action: RestartJob}, {event: PodEvicted, action: RestartJob}]
  plugins: {pytorch: ["--master=master", "--worker=worker", "--port=23456"]}
  tasks:
  - {name: master, replicas: 1, template: {spec: PODS}}
  - {name: worker, replicas: 1, template: {spec: PODS}}
`,
	},
}

func (k kind) String() string { return k.name }

// manifest returns the file of a system's job; spared is a node that must not run its pods.
func (k kind) manifest(system, name, spared string) (string, error) {
	annotations, scheduler := "{}", k.scheduler
	if system == systemHoldfast {
		annotations, scheduler = fmt.Sprintf("{%s: %q}", v1alpha1.AnnotationEnabled, "true"), v1alpha1.SchedulerName
	}
	pod, err := json.Marshal(k.pod(name, spared))
	if err != nil {
		return "", err
	}
	return strings.NewReplacer("NAME", name, "ANNOTATIONS", annotations, "PODS", string(pod), "SCHEDULER", scheduler).Replace(k.file), nil
}

// pod returns the pods of both systems.
func (k kind) pod(name, spared string) corev1.PodSpec {
	line := fmt.Sprintf("exec torchrun --nnodes=%d --nproc-per-node=1 --node-rank=%s --master-addr=%s --master-port=%d train.py %s/%s %s",
		ranks, k.rank, strings.ReplaceAll(k.master, "NAME", name), port, lives.StateAt, name, pause)
	own := corev1.EnvVar{
		Name:      "POD_NAME",
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
	}
	pod := lives.Pod(name, line, 5, gpus, harness.ClaimVolume(state, false).VolumeSource, own)
	pod.Containers[0].Name = k.container
	pod.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{spared}},
			}}},
		}},
	}
	return pod
}

// room returns the objects that all jobs share.
func room() []client.Object {
	all := lives.Room(namespace, map[string]string{"train.py": trainScript})
	all[0].SetLabels(nil) // the init container of training-operator does not meet level "restricted"
	return append(all, harness.Claim(namespace, state, layout.SharedStorageClass, corev1.ReadWriteMany))
}
