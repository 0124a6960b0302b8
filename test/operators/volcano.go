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

// Volcano is the project's scheduler, controllers and webhooks. Its manifests name images of v1.14.0, which are replaced like all images.
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
	// A shell script with openssl and kubectl creates the certificate of the webhooks. The image here lacks these programs, so the test
	// creates the certificate.
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

// volcanoCertificate returns the Secret that the webhooks' Deployment mounts. The file of the certificate also has the authority.
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
