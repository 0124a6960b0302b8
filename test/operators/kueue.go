package operators

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// kueueConfig is the key of Kueue's configuration in its ConfigMap.
const kueueConfig = "controller_manager_config.yaml"

// Kueue is the project's one controller, with webhooks. As docs/operations.md advises, it waits for the pods of a job to be ready, but does
// not suspend a job that was ready and lost a pod. The module's configuration has this option in a comment.
var Kueue = &Operator{
	Name:      "kueue",
	Module:    "sigs.k8s.io/kueue",
	Folder:    "test/peers/kueue",
	Namespace: "kueue-system",
	manifests: "config/default",
	programs:  map[string]program{"us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue": {"kueue", "/manager"}},
	change: func(u *unstructured.Unstructured) bool {
		if text, is, _ := unstructured.NestedString(u.Object, "data", kueueConfig); is {
			text += "\nwaitForPodsReady: {timeout: 5m, recoveryTimeout: 0s}\n"
			return unstructured.SetNestedField(u.Object, text, "data", kueueConfig) == nil
		}
		return true
	},
	probe: `{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQueue, metadata: {name: probe}, spec: {namespaceSelector: {}}}`,
}
