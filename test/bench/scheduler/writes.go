package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
)

// What the policy holdfast-unknown-kinds costs a write of an object without an annotation of Holdfast's: the same writes with the policy
// bound and without, block after block, on one API server.
const (
	writesCase = "writes"
	unbound    = "without the policy"
	writeRatio = "write_p99_vs_unbound"
	policyName = "holdfast-unknown-kinds"
)

// block is what is measured at a time.
type block struct{ pairs, writes int }

func blocks(quick bool) block {
	if quick {
		return block{pairs: 1, writes: 50}
	}
	return block{pairs: 20, writes: 1000}
}

// policyCost measures blocks in turn, first without and then with the policy, and the next time in the opposite order.
func (b *bench) policyCost(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "bench-scheduler-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := newPlane(ctx, dir, filepath.Join(b.Root(), "bin/holdfast-dev"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	binding, err := p.policy(ctx, filepath.Join(b.Root(), "manifests/webhook/policy.yaml"))
	if err != nil {
		return err
	}
	size := blocks(b.Quick)
	for pair := range size.pairs {
		p99 := map[bool]float64{}
		for _, bound := range []bool{pair%2 == 1, pair%2 == 0} {
			if err := p.bind(ctx, binding, bound); err != nil {
				return err
			}
			took, err := p.write(ctx, size.writes)
			if err != nil {
				return err
			}
			slices.Sort(took)
			p99[bound] = took[len(took)*99/100]
			name := map[bool]string{false: unbound, true: systemHoldfast}[bound]
			b.Add(writesCase, name, "write_p99", "ms", p99[bound]*1000)
			b.Add(writesCase, name, "write_median", "ms", figure.Median(took)*1000)
		}
		b.Add(writesCase, systemHoldfast, writeRatio, figure.Times, p99[true]/p99[false])
	}
	return nil
}

// policy creates the shipped policy, and returns its first binding.
func (p *plane) policy(ctx context.Context, file string) (*unstructured.Unstructured, error) {
	all, err := documents(file)
	if err != nil {
		return nil, err
	}
	var binding *unstructured.Unstructured
	for _, o := range all {
		switch {
		case o.GetName() != policyName:
		case o.GetKind() == "ValidatingAdmissionPolicyBinding":
			binding = o
		default:
			if _, err := p.dynamic.Resource(admissionResource("validatingadmissionpolicies")).Create(ctx, o, metav1.CreateOptions{}); err != nil {
				return nil, fmt.Errorf("creating the policy: %w", err)
			}
		}
	}
	if binding == nil {
		return nil, fmt.Errorf("%s has no binding of %s", file, policyName)
	}
	return binding, nil
}

func admissionResource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: name}
}

// bind binds the policy or ends that, and waits until the API server does so.
func (p *plane) bind(ctx context.Context, binding *unstructured.Unstructured, bound bool) error {
	bindings := p.dynamic.Resource(admissionResource("validatingadmissionpolicybindings"))
	there, err := bindings.List(ctx, metav1.ListOptions{})
	switch {
	case err != nil:
	case bound && len(there.Items) == 0:
		_, err = bindings.Create(ctx, binding.DeepCopy(), metav1.CreateOptions{})
	case !bound && len(there.Items) > 0:
		err = bindings.Delete(ctx, binding.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		return fmt.Errorf("binding the policy: %w", err)
	}
	denied := deployment(map[string]string{v1alpha1.AnnotationEnabled: "true"})
	return p.api.until(ctx, func() error {
		_, err := p.client.AppsV1().Deployments(namespace).Create(ctx, denied, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if denies := err != nil && strings.Contains(err.Error(), policyName); denies != bound {
			return fmt.Errorf("the policy denies: %v, wanted: %v, answer: %v", denies, bound, err)
		}
		return nil
	})
}

// deployment is one of no pods: the policy's expressions look at it, and at its template.
func deployment(annotations map[string]string) *appsv1.Deployment {
	labels := map[string]string{"app": "write"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "write-", Annotations: annotations},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "write", Image: "write"}}},
			},
		},
	}
}

// write creates a Deployment and changes it again and again, and returns how long each write took, in seconds.
func (p *plane) write(ctx context.Context, n int) ([]float64, error) {
	all := p.client.AppsV1().Deployments(namespace)
	o := deployment(map[string]string{"example.com/a": "b"})
	took := make([]float64, n)
	for i := range took {
		o.Annotations["example.com/n"] = fmt.Sprint(i)
		began := time.Now()
		var err error
		if o.Name == "" {
			o, err = all.Create(ctx, o, metav1.CreateOptions{})
		} else {
			o, err = all.Update(ctx, o, metav1.UpdateOptions{})
		}
		if err != nil {
			return nil, fmt.Errorf("write %d: %w", i, err)
		}
		took[i] = time.Since(began).Seconds()
	}
	return took, all.Delete(ctx, o.Name, metav1.DeleteOptions{})
}
