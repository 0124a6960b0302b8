package operators

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/harness"
)

// JobSet is the project's one controller, which also serves the webhooks.
var JobSet = &Operator{
	Name:      "jobset",
	Module:    "sigs.k8s.io/jobset",
	Folder:    "test/peers/jobset",
	Namespace: "jobset-system",
	manifests: "config/default",
	programs:  map[string]program{"us-central1-docker.pkg.dev/k8s-staging-images/jobset/jobset": {"jobset", "/manager"}},
	probe: `{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: probe, namespace: default},
spec: {replicatedJobs: [{name: one,
template: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: one, image: none}]}}}}}]}}`,
}

// waiter is the image of the init container in which workers of a PyTorchJob wait for the name of their master.
const waiter = "holdfast.dev/peers/pytorch-init:1"

// TrainingOperator is the project's one controller, with webhooks, for all its kinds. Its init containers run nslookup from an image of a
// registry. Here an image with getent under that name replaces it.
var TrainingOperator = &Operator{
	Name:      "training-operator",
	Module:    "github.com/kubeflow/training-operator",
	Folder:    "test/peers/training-operator",
	Namespace: "kubeflow",
	manifests: "manifests/overlays/standalone",
	programs:  map[string]program{"ghcr.io/kubeflow/training-v1/training-operator": {"training-operator.v1", "/manager"}},
	prepare: func(ctx context.Context, c *harness.Cluster) ([]runtime.Object, error) {
		img, err := image.Base("")
		if err != nil {
			return nil, err
		}
		img.Name = waiter
		script := []byte("#!/bin/sh\nexec getent hosts \"$1\"\n")
		img.Files = append(img.Files, image.File{Path: "/usr/bin/nslookup", Mode: 0o755, Content: script})
		return nil, c.Load(ctx, img)
	},
	deployment: func(d *appsv1.Deployment) {
		main := &d.Spec.Template.Spec.Containers[0]
		main.Args = append(main.Args, "--pytorch-init-container-image="+waiter)
	},
	probe: `{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: probe, namespace: default},
spec: {pytorchReplicaSpecs: {Master: {replicas: 1,
restartPolicy: Never, template: {spec: {containers: [{name: pytorch, image: none}]}}}}}}`,
}
