package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster"
)

// Cluster is a cluster that was started on this machine, with the binaries of a source tree.
type Cluster struct {
	*World
	*devcluster.Cluster
	// Source is the root of the source tree: the binaries are in its bin/; its manifests and examples are applied.
	Source string
}

// Up starts a cluster and connects to it.
func Up(ctx context.Context, source string, o devcluster.Options) (*Cluster, error) {
	o.Binary = filepath.Join(source, "bin/holdfast-dev")
	c, err := devcluster.Up(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("starting the cluster: %w", err)
	}
	w, err := Connect(c.Kubeconfig(), o.Out)
	if err != nil {
		return nil, errors.Join(err, c.Down())
	}
	return &Cluster{World: w, Cluster: c, Source: source}, nil
}

// Start starts a cluster that ends with the test. If this machine or user cannot run one, it skips the test with a clear message.
func Start(t testing.TB, o devcluster.Options) *Cluster {
	t.Helper()
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("this binary does not know where its source is")
	}
	c := devcluster.Start(t, o)
	w, err := Connect(c.Kubeconfig(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{World: w, Cluster: c, Source: filepath.Join(filepath.Dir(here), "..", "..")}
}

// Install loads the images, applies the manifests as a user would, and waits until all components serve.
func (c *Cluster) Install(ctx context.Context) error {
	if err := c.LoadImages(ctx); err != nil {
		return err
	}
	return c.Apply(ctx, filepath.Join(c.Source, "manifests"))
}

// InstallOn is Install with all controllers on one node, so that a test may end the others.
func (c *Cluster) InstallOn(ctx context.Context, node *devcluster.Node) error {
	dir, err := os.MkdirTemp("", "holdfast-overlay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return errors.Join(c.LoadImages(ctx), c.Overlay(dir, fmt.Sprintf(onOneNode, node.Name)), c.Apply(ctx, dir))
}

// onOneNode is an overlay, with a node's name in place of its %q.
const onOneNode = `
resources: [%%s]
patches:
- target: {kind: Deployment}
  patch: '[{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"kubernetes.io/hostname": %q}}]'
`

// Apply applies a folder of manifests, the shipped ones or an overlay over them, and waits until all components serve.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	if _, err := c.RunKubectl(ctx, "apply", "--server-side", "-k", manifests); err != nil {
		return err
	}
	return c.Serves(ctx)
}

// Overlay writes a kustomization to a folder: text, with the path of the shipped manifests in place of its %s.
func (c *Cluster) Overlay(dir, text string) error {
	base, err := filepath.Rel(dir, filepath.Join(c.Source, "manifests"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, text, base), 0o644)
}

// Serves waits until every installed replica serves.
func (w *World) Serves(ctx context.Context) error {
	return errors.Join(w.Available(ctx, "holdfast-controller"), w.Available(ctx, "holdfast-scheduler"))
}

// Available waits until every replica of one of Holdfast's deployments serves.
func (w *World) Available(ctx context.Context, deployment string) error {
	return w.Until(ctx, "deployment "+deployment+" available", 2*time.Minute, func(ctx context.Context) (bool, string) {
		d, err := w.kube.AppsV1().Deployments(v1alpha1.Namespace).Get(ctx, deployment, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.AvailableReplicas == *d.Spec.Replicas && s.UpdatedReplicas == *d.Spec.Replicas,
			fmt.Sprintf("%d of %d replicas", s.AvailableReplicas, *d.Spec.Replicas)
	})
}

// RunKubectl runs the cluster's own kubectl and returns its output with warnings.
func (c *Cluster) RunKubectl(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, filepath.Join(c.Spec().BinDir(), "kubectl"), args...)
}

// RunDev runs holdfast-dev for the cluster, with arguments such as "node", "fail", "n1", …
func (c *Cluster) RunDev(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, filepath.Join(c.Source, "bin/holdfast-dev"), append(slices.Clone(args), "--name", c.Name())...)
}

// Explain returns the output of `kubectl holdfast explain` for a job.
func (c *Cluster) Explain(ctx context.Context, namespace, job string) (string, error) {
	return c.Holdfast(ctx, "explain", "job/"+job, "-n", namespace)
}

// Holdfast returns the output of `kubectl holdfast`, whatever its exit code.
func (c *Cluster) Holdfast(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, filepath.Join(c.Source, "bin/kubectl-holdfast"), args...)
}

func (c *Cluster) run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
