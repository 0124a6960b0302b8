// Package operators installs other projects' job controllers and Kueue on a dev cluster: the programs that `make peers` and
// `make peer-kueue` build from the modules below test/peers, with these modules' own manifests. Each change to a manifest has a comment that
// gives the reason.
package operators

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/harness"
)

// Operator is the controllers of another project.
type Operator struct {
	// Name is its folder below bin/peers.
	Name string
	// Module is its module, of the version that go.mod in Folder, below the source tree, requires.
	Module, Folder string
	// Namespace has its Deployments.
	Namespace string
	// manifests is a kustomization, or a file, of the module.
	manifests string
	// programs has, by repository of an image in the manifests, the program that the image runs.
	programs map[string]program
	// prepare creates what the manifests need and this cluster lacks.
	prepare func(context.Context, *harness.Cluster) ([]runtime.Object, error)
	// change changes an object of the manifests for this cluster, and reports whether the object is applied.
	change func(*unstructured.Unstructured) (wanted bool)
	// deployment changes a Deployment of the manifests for this cluster.
	deployment func(*appsv1.Deployment)
	// probe is an object that the API server accepts once the webhooks serve.
	probe string
}

// program is an executable of bin/peers/NAME and where the manifests expect it.
type program struct{ file, path string }

// All are the operators of kinds of jobs.
var All = []*Operator{Volcano, JobSet, TrainingOperator}

// Install loads the images into some nodes, restricts the Deployments to these nodes, and waits until all Deployments and webhooks serve.
func (o *Operator) Install(ctx context.Context, c *harness.Cluster, on ...*devcluster.Node) error {
	dir, version, err := o.locate(ctx, c.Source)
	if err != nil {
		return err
	}
	objects, err := o.read(ctx, c, dir)
	if err != nil {
		return fmt.Errorf("reading the manifests of %s: %w", o.Name, err)
	}
	for _, p := range o.programs {
		img, err := o.image(c.Source, version, p)
		if err != nil {
			return err
		}
		if err := c.LoadInto(ctx, on, img); err != nil {
			return err
		}
	}
	if objects, err = o.adapt(ctx, c, objects, version, on); err != nil {
		return fmt.Errorf("adapting the manifests of %s: %w", o.Name, err)
	}
	if err := apply(ctx, c, objects); err != nil {
		return fmt.Errorf("installing %s: %w", o.Name, err)
	}
	return o.serves(ctx, c)
}

// File is a file of the operator's module, such as an example.
func (o *Operator) File(ctx context.Context, source, name string) ([]byte, error) {
	dir, _, err := o.locate(ctx, source)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, name))
}

// Dir returns the folder of the operator's module.
func (o *Operator) Dir(ctx context.Context, source string) (string, error) {
	dir, _, err := o.locate(ctx, source)
	return dir, err
}

// locate returns the folder and the version of the module.
func (o *Operator) locate(ctx context.Context, source string) (dir, version string, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", o.Module)
	cmd.Dir = filepath.Join(source, o.Folder)
	out, err := cmd.CombinedOutput()
	words := strings.Fields(string(out))
	if err != nil || len(words) != 2 {
		return "", "", fmt.Errorf("finding module %s: %w: %s; download it with: make peer-%s", o.Module, err, out, o.Name)
	}
	return words[0], words[1], nil
}

// read returns the objects of the module's manifests.
func (o *Operator) read(ctx context.Context, c *harness.Cluster, dir string) ([]*unstructured.Unstructured, error) {
	path := filepath.Join(dir, o.manifests)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		text, err := c.Kubectl(ctx, "kustomize", path)
		if err != nil {
			return nil, err
		}
		return Decode([]byte(text))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Decode(text)
}

// reference is the name of a program's image on the cluster.
func (o *Operator) reference(version string, p program) string {
	return "holdfast.dev/peers/" + o.Name + "/" + p.file + ":" + version
}

func (o *Operator) image(source, version string, p program) (*image.Image, error) {
	files, err := image.Copy(filepath.Join(source, "bin/peers", o.Name, p.file), p.path)
	if err != nil {
		return nil, fmt.Errorf("%w; build it with: make peer-%s", err, o.Name)
	}
	return &image.Image{Name: o.reference(version, p), Entrypoint: []string{p.path}, User: "65532:65532", Files: files}, nil
}

// adapt changes the module's objects for this cluster.
func (o *Operator) adapt(
	ctx context.Context,
	c *harness.Cluster,
	objects []*unstructured.Unstructured,
	version string,
	on []*devcluster.Node,
) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, u := range objects {
		if o.change != nil && !o.change(u) {
			continue
		}
		if u.GetKind() == "Deployment" {
			if err := o.adaptDeployment(u, version, on); err != nil {
				return nil, fmt.Errorf("deployment %s: %w", u.GetName(), err)
			}
		}
		out = append(out, u)
	}
	if o.prepare == nil {
		return out, nil
	}
	more, err := o.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, m := range more {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(m)
		if err != nil {
			return nil, err
		}
		out = append(out, &unstructured.Unstructured{Object: fields})
	}
	return out, nil
}

// adaptDeployment sets the names of the images that were built here, which are in no registry, and restricts the pods to the nodes that
// have them.
func (o *Operator) adaptDeployment(u *unstructured.Unstructured, version string, on []*devcluster.Node) error {
	d := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, d); err != nil {
		return err
	}
	spec := &d.Spec.Template.Spec
	for i := range spec.Containers {
		repository, _, _ := strings.Cut(spec.Containers[i].Image, ":")
		p, ok := o.programs[repository]
		if !ok {
			return fmt.Errorf("container %s: there is no program for image %s", spec.Containers[i].Name, spec.Containers[i].Image)
		}
		spec.Containers[i].Image, spec.Containers[i].ImagePullPolicy = o.reference(version, p), corev1.PullIfNotPresent
	}
	spec.Affinity = within(on)
	if o.deployment != nil {
		o.deployment(d)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	u.Object = fields
	return err
}

// within keeps pods to some nodes.
func within(nodes []*devcluster.Node) *corev1.Affinity {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}}},
		}}}}
}

// serves waits until all Deployments are available and the webhooks answer.
func (o *Operator) serves(ctx context.Context, c *harness.Cluster) error {
	limit := "--timeout=" + eventually.Timeout.String()
	if out, err := c.RunKubectl(ctx, "wait", "--for=condition=Available", "deployment", "--all", "-n", o.Namespace, limit); err != nil {
		return fmt.Errorf("waiting for %s: %w: %s", o.Name, err, out)
	}
	return c.Until(ctx, "webhooks of "+o.Name, eventually.Timeout, func(ctx context.Context) (bool, string) {
		_, err := c.KubectlIn(ctx, o.probe, "create", "--dry-run=server", "-f", "-")
		return err == nil, fmt.Sprint(err)
	})
}

// Kill kills all pods of the operator, and starts no others until Revive.
func (o *Operator) Kill(ctx context.Context, c *harness.Cluster) error {
	for _, args := range [][]string{
		{"scale", "deployment", "--all", "--replicas=0", "-n", o.Namespace},
		{"delete", "pod", "--all", "--grace-period=0", "--force", "-n", o.Namespace},
	} {
		if out, err := c.RunKubectl(ctx, args...); err != nil {
			return fmt.Errorf("killing %s: %w: %s", o.Name, err, out)
		}
	}
	return c.Until(ctx, "no pod of "+o.Name+" is left", eventually.Timeout, func(ctx context.Context) (bool, string) {
		pods, err := c.Kube().CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0, fmt.Sprint(err)
	})
}

// Revive starts the operator again and waits until it serves and leads. Each Deployment has one pod in the manifests.
func (o *Operator) Revive(ctx context.Context, c *harness.Cluster) error {
	if out, err := c.RunKubectl(ctx, "scale", "deployment", "--all", "--replicas=1", "-n", o.Namespace); err != nil {
		return fmt.Errorf("starting %s again: %w: %s", o.Name, err, out)
	}
	limit := "--timeout=" + eventually.Timeout.String()
	one := "--for=jsonpath={.status.availableReplicas}=1" // a Deployment that wants no pod is Available, too
	if out, err := c.RunKubectl(ctx, "wait", one, "deployment", "--all", "-n", o.Namespace, limit); err != nil {
		return fmt.Errorf("waiting for %s: %w: %s", o.Name, err, out)
	}
	if err := o.serves(ctx, c); err != nil {
		return err
	}
	return c.Until(ctx, o.Name+" leads", eventually.Timeout, func(ctx context.Context) (bool, string) {
		return o.leads(ctx, c)
	})
}

// leads reports whether pods that exist hold all leases. A pod that was killed did not release its lease, and until that has expired, its
// successor serves webhooks and does nothing else.
func (o *Operator) leads(ctx context.Context, c *harness.Cluster) (bool, string) {
	pods, err := c.Kube().CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err.Error()
	}
	leases, err := c.Kube().CoordinationV1().Leases(o.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err.Error()
	}
	for _, l := range leases.Items {
		holder := ptr.Deref(l.Spec.HolderIdentity, "")
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return strings.HasPrefix(holder, p.Name+"_") }) {
			return false, fmt.Sprintf("%s holds lease %s", holder, l.Name)
		}
	}
	return true, ""
}
