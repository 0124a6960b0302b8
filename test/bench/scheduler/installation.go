package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// webhookService is the Service by which the API server reaches Holdfast's webhook.
const webhookService = "holdfast-webhook"

// madePerSecond is the rate at which pods of Jobs are created. All clients are exempt from priority and fairness: at full speed
// kube-controller-manager would keep the controller from renewing its lease.
const madePerSecond = 200

// installation is what a user of Holdfast runs beside its scheduler: the controller, with webhook and policies, and
// kube-controller-manager, which makes the pods of Jobs. The nodes have no kubelets and so no leases: the controller ignores nodes.
type installation struct{ manager, controller *process }

func (t *trial) install(ctx context.Context) (*installation, error) {
	p := t.plane
	free, err := ports(5)
	if err != nil {
		return nil, err
	}
	if err := p.applyManifests(ctx, t.source, int64(free[0])); err != nil {
		return nil, err
	}
	i := &installation{}
	if i.controller, err = start(p.dir, "holdfast-controller", filepath.Join(t.source, "bin/holdfast-controller"), nil,
		"--agent-image=holdfast.dev/agent:bench", "--nodes=off", fmt.Sprintf("--webhook-address=127.0.0.1:%d", free[0]),
		fmt.Sprintf("--coordinator-address=127.0.0.1:%d", free[1]), fmt.Sprintf("--health-address=127.0.0.1:%d", free[2]), "--metrics-address=0"); err != nil {
		return nil, err
	}
	if i.manager, err = start(p.dir, "kube-controller-manager", filepath.Join(t.source, "bin/holdfast-dev"), nil,
		"--kubeconfig="+p.kubeconfig, "--authentication-kubeconfig="+p.kubeconfig, "--authorization-kubeconfig="+p.kubeconfig,
		"--authentication-skip-lookup", "--leader-elect=false", "--controllers=job-controller", "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", free[3]), "--cert-dir="+p.dir, fmt.Sprintf("--kube-api-qps=%d", madePerSecond), fmt.Sprintf("--kube-api-burst=%d", madePerSecond)); err != nil {
		return i, err
	}
	return i, i.controller.until(ctx, func() error {
		probe := job(group{name: "probe", size: 1, gpus: 1})
		got, err := p.client.BatchV1().Jobs(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && got.Spec.Template.Annotations[v1alpha1.AnnotationGangSize] == "" {
			err = errors.New("the API server does not call the webhook yet")
		}
		return err
	})
}

func (i *installation) stop() {
	for _, child := range []*process{i.manager, i.controller} {
		if child != nil {
			child.stop()
		}
	}
}

// applyManifests creates the objects of Holdfast's manifests on which admission depends. The API server, which is no pod, reaches the
// webhook by a Service that names this machine.
func (p *plane) applyManifests(ctx context.Context, source string, port int64) error {
	c, err := client.New(p.config, client.Options{})
	if err != nil {
		return err
	}
	for _, file := range []string{"namespace.yaml", "webhook/secret.yaml", "webhook/policy.yaml", "controller/policy.yaml", "webhook/webhooks.yaml"} {
		all, err := documents(filepath.Join(source, "manifests", file))
		if err != nil {
			return err
		}
		for _, o := range all {
			toPort(o, port)
			if err := c.Create(ctx, o); err != nil {
				return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
	}
	return c.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: webhookService},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	})
}

// toPort has the API server call the webhooks of a configuration at a port.
func toPort(o *unstructured.Unstructured, port int64) {
	hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
	for _, h := range hooks {
		if h, ok := h.(map[string]any); ok {
			_ = unstructured.SetNestedField(h, port, "clientConfig", "service", "port")
		}
	}
	if hooks != nil {
		_ = unstructured.SetNestedSlice(o.Object, hooks, "webhooks")
	}
}

// documents reads the objects of a file.
func documents(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(part), &o.Object); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		all = append(all, o)
	}
	return all, nil
}

// job returns the Job of a gang, as a user writes it; its pods request the same as those of the other systems.
func job(g group) *batchv1.Job {
	p := pod(g, 0)
	p.Spec.ServiceAccountName = "default" // as the admission plugin, which is off, sets it
	notes := map[string]string{v1alpha1.AnnotationEnabled: "true"}
	if g.rack {
		notes[v1alpha1.AnnotationTopologyRequired] = labelRack
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: g.name, Annotations: notes},
		Spec: batchv1.JobSpec{
			CompletionMode: ptr.To(batchv1.IndexedCompletion), Completions: ptr.To(int32(g.size)), Parallelism: ptr.To(int32(g.size)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "train"}}, Spec: p.Spec},
		},
	}
}

// createJobs creates a Job per gang, and waits until their pods were seen.
func (t *trial) createJobs(ctx context.Context) error {
	t.first = time.Now()
	for _, g := range t.k.groups {
		if g.name == "" {
			return errors.New("a pod of no gang has no Job")
		}
		if _, err := t.plane.client.BatchV1().Jobs(namespace).Create(ctx, job(g), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating the Job of gang %s: %w", g.name, err)
		}
	}
	var err error
	t.last, err = t.seen.allMade(ctx)
	return err
}
