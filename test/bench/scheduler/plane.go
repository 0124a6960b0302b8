package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"
)

const (
	namespace = "bench"
	token     = "bench"
)

// plane is the control plane of one run: an etcd that does not fsync, and an API server. It has no controllers and no kubelets, as none of
// them is measured: the benchmark creates Nodes and pods itself.
type plane struct {
	dir        string
	etcd, api  *process
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	dynamic    *dynamic.DynamicClient
}

// newPlane starts a control plane that serves the APIs of all systems.
func newPlane(ctx context.Context, dir, dev string) (*plane, error) {
	p := &plane{dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig")}
	free, err := ports(3)
	if err != nil {
		return nil, err
	}
	if err := p.secrets(free[2]); err != nil {
		return nil, err
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", free[0])
	if p.etcd, err = start(dir, "etcd", dev, nil, filepath.Join(dir, "etcd"), etcd, fmt.Sprintf("http://127.0.0.1:%d", free[1])); err != nil {
		return nil, err
	}
	if err := p.etcd.until(ctx, func() error { return dial(free[0]) }); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	p.api, err = start(dir, "kube-apiserver", dev, nil,
		"--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", fmt.Sprintf("--secure-port=%d", free[2]), "--cert-dir="+dir,
		"--authorization-mode=AlwaysAllow", "--token-auth-file="+filepath.Join(dir, "tokens"), "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+filepath.Join(dir, "sa.key"), "--service-account-signing-key-file="+filepath.Join(dir, "sa.key"),
		// There is no controller that would create service accounts or remove taints from new nodes.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// For the native system; the API server is the same for all.
		"--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true", "--runtime-config=scheduling.k8s.io/v1beta1=true")
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, p.connect(ctx, free[2])
}

func (p *plane) connect(ctx context.Context, port int) error {
	// The creators' client is the same for all systems, without a rate limit.
	p.config = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	var err error
	if p.dynamic, err = dynamic.NewForConfig(p.config); err != nil {
		return errors.Join(err, p.stop())
	}
	binary := rest.CopyConfig(p.config)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	if p.client, err = kubernetes.NewForConfig(binary); err != nil {
		return errors.Join(err, p.stop())
	}
	if err := p.api.until(ctx, func() error { return p.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() }); err != nil {
		return errors.Join(err, p.stop())
	}
	_, err = p.client.CoreV1().
		Namespaces().
		Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return errors.Join(err, p.stop())
	}
	return nil
}

// secrets writes the keys and tokens of the API server and its clients.
func (p *plane) secrets(port int) error {
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: bench, user: {token: %s}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
current-context: bench
`, port, token)
	return errors.Join(
		os.WriteFile(filepath.Join(p.dir, "sa.key"), key, 0o600),
		// system:masters is exempt from priority and fairness: no system is limited by its user's share.
		os.WriteFile(filepath.Join(p.dir, "tokens"), []byte(token+`,bench,bench,"system:masters"`+"\n"), 0o600),
		os.WriteFile(p.kubeconfig, []byte(kubeconfig), 0o600))
}

func (p *plane) stop() error {
	for _, child := range []*process{p.api, p.etcd} {
		if child != nil {
			child.stop()
		}
	}
	return nil
}

// define creates a kind from its definition's file and waits until it is served.
func (p *plane) define(ctx context.Context, file string, gvr schema.GroupVersionResource) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := p.dynamic.Resource(crds).Create(ctx, crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating what %s defines: %w", file, err)
	}
	return p.api.until(ctx, func() error {
		_, err := p.dynamic.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
}

func dial(port int) error {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}
