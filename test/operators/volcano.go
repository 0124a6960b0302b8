package operators

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"

	"holdfast.dev/holdfast/test/harness"
)

const volcanoNamespace = "volcano-system"

// Volcano is its scheduler, controllers and webhooks. Its manifests name images of v1.14.0, which are replaced as all are.
var Volcano = &Operator{
	Name:      "volcano",
	Module:    "volcano.sh/volcano",
	Folder:    "test/peers",
	Namespace: volcanoNamespace,
	manifests: "installer/volcano-development.yaml",
	programs: map[string]program{
		"docker.io/volcanosh/vc-scheduler":          {"scheduler", "/vc-scheduler"},
		"docker.io/volcanosh/vc-controller-manager": {"controller-manager", "/vc-controller-manager"},
		"docker.io/volcanosh/vc-webhook-manager":    {"webhook-manager", "/vc-webhook-manager"},
	},
	// What makes the webhooks' certificate is a shell script over openssl and kubectl, which the image lacks: it is made here.
	change: func(u *unstructured.Unstructured) bool {
		return u.GetNamespace() != volcanoNamespace || !strings.HasPrefix(u.GetName(), "volcano-admission-init")
	},
	prepare: func(context.Context, *harness.Cluster) ([]runtime.Object, error) {
		return volcanoCertificate()
	},
	probe: `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: probe, namespace: default},
spec: {minAvailable: 1, schedulerName: volcano,
tasks: [{name: one, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: one, image: none}]}}}]}}`,
}

// volcanoCertificate is the Secret that the webhooks' Deployment mounts; the authority is in the same file as what it signed.
func volcanoCertificate() ([]runtime.Object, error) {
	const service = "volcano-admission-service"
	pair, key, err := cert.GenerateSelfSignedCertKey(service+"."+volcanoNamespace+".svc", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("certificate of the webhooks: %w", err)
	}
	return []runtime.Object{&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: volcanoNamespace, Name: "volcano-admission-secret"},
		Data:       map[string][]byte{"tls.key": key, "tls.crt": pair, "ca.crt": pair},
	}}, nil
}
