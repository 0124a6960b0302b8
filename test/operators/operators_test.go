package operators

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestVolcanoCertificate: the API server trusts the webhooks by the name of their Service, with the authority in the webhook configuration.
func TestVolcanoCertificate(t *testing.T) {
	objects, err := volcanoCertificate()
	if err != nil {
		t.Fatal(err)
	}
	secret := objects[0].(*corev1.Secret)
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: "volcano-admission-service.volcano-system.svc", Roots: roots}); err != nil {
		t.Error(err)
	}
}

// TestUnknownImage: if a container of another version has no program here, the error names it. Otherwise its pod would wait for the image.
func TestUnknownImage(t *testing.T) {
	objects, err := Decode([]byte(`# nothing
---
apiVersion: apps/v1
kind: Deployment
spec: {template: {spec: {containers: [{name: main, image: "docker.io/volcanosh/vc-scheduler:v1"},
  {name: other, image: "docker.io/volcanosh/vc-new:v1"}]}}}
`))
	if err != nil || len(objects) != 1 {
		t.Fatalf("%d objects: %v", len(objects), err)
	}
	const want = "container other: there is no program for image docker.io/volcanosh/vc-new:v1"
	if err := Volcano.adaptDeployment(objects[0], "v1", nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}
