package upgrade

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/harness"
)

// earlier is the tag that the images have before the upgrade. They have today's programs: no earlier version had a chart.
const earlier = "v0.0.9"

// TestHelm installs, upgrades, rolls back, uninstalls and installs again with the helm program, while one job runs.
func TestHelm(t *testing.T) {
	ctx := context.Background()
	c := harness.Start(t, devcluster.Options{Name: "helm", Nodes: 2})
	if _, err := os.Stat(filepath.Join(c.Source, "bin/helm")); err != nil {
		t.Fatalf("%v: run make test-helm", err)
	}
	w := &world{T: t, old: c, today: c, pods: map[string]string{}, generation: 1}
	w.must(c.LoadImages(ctx))
	w.loadEarlier(ctx)

	w.helm(ctx, "install", "--create-namespace", "--set", "image.tag="+earlier)
	w.must(c.Serves(ctx))
	w.start(ctx)
	w.failure(ctx)

	w.step(ctx, "upgrade", "--reset-values")
	w.runs(ctx, "v0.1.0-dev")
	w.replacement(ctx, 1, "a new pod gets the new agent")
	w.settled(ctx)
	w.failure(ctx)

	w.step(ctx, "upgrade", "--reset-values", "--set", "highAvailability=false")
	w.failure(ctx)

	w.step(ctx, "rollback", "1")
	w.runs(ctx, earlier)
	w.failure(ctx)

	w.today.Say("helm uninstall")
	w.helm(ctx, "uninstall", "--wait")
	w.advances(ctx, done) // without a coordinator no saved step becomes common, so saves are skipped
	if out, err := c.RunKubectl(ctx, "get", "gangs", "-n", namespace, "-o", "name"); err != nil || !strings.Contains(out, job) {
		t.Errorf("after helm uninstall the Gangs are %q: %v", out, err)
	}
	if out, err := c.RunKubectl(ctx, "get", "mutatingwebhookconfigurations,deployments,daemonsets", "-A", "-l", "app.kubernetes.io/part-of=holdfast", "-o", "name"); err != nil || out != "" {
		t.Errorf("helm uninstall leaves %s: %v", out, err)
	}
	w.step(ctx, "install")
	w.failure(ctx) // the agents trust the certificates that stayed
}

// loadEarlier loads the images again, with the earlier tag.
func (w *world) loadEarlier(ctx context.Context) {
	w.Helper()
	for _, name := range image.Products {
		img, err := image.Product(filepath.Join(w.today.Source, "bin"), name, "holdfast.dev/"+name+":"+earlier, "")
		w.must(err)
		w.must(w.today.LoadInto(ctx, w.today.Nodes(), img))
	}
}

// step runs helm, waits until the control plane serves, and checks that the job trains on in the same pods and generation.
func (w *world) step(ctx context.Context, args ...string) {
	w.Helper()
	w.today.Say("helm %s", strings.Join(args, " "))
	w.helm(ctx, args...)
	w.must(w.today.Serves(ctx))
	w.trains(ctx)
}

// helm runs a command of helm for the release, with the chart where it needs one.
func (w *world) helm(ctx context.Context, args ...string) string {
	w.Helper()
	words := []string{args[0], "holdfast"}
	switch args[0] {
	case "install", "upgrade", "template":
		words = append(words, filepath.Join(w.today.Source, "charts/holdfast"))
	}
	words = append(append(words, args[1:]...), "--namespace", v1alpha1.Namespace)
	cmd := exec.CommandContext(ctx, filepath.Join(w.today.Source, "bin/helm"), words...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.today.Kubeconfig())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("helm %s: %v: %s", strings.Join(words, " "), err, stderr.String())
	}
	return string(out)
}

// runs checks that the control plane runs images with a tag.
func (w *world) runs(ctx context.Context, tag string) {
	w.Helper()
	list, err := w.today.Kube().AppsV1().Deployments(v1alpha1.Namespace).List(ctx, metav1.ListOptions{})
	w.must(err)
	for _, d := range list.Items {
		if image := d.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(image, ":"+tag) {
			w.Errorf("%s runs %s", d.Name, image)
		}
	}
	if len(list.Items) != 2 {
		w.Errorf("%d deployments", len(list.Items))
	}
}

// settled checks that neither a second upgrade nor an apply of what the chart renders changes an object.
func (w *world) settled(ctx context.Context) {
	w.Helper()
	rendered := filepath.Join(w.TempDir(), "rendered.yaml")
	w.must(os.WriteFile(rendered, []byte(w.helm(ctx, "template")), 0o644))
	versions := func() string {
		out, err := w.today.RunKubectl(ctx, "get", "-f", rendered, "-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
		w.must(err)
		return out
	}
	before := versions()
	w.until("the upgraded objects rest", func() (bool, any) { // the old pods' ends still change a Deployment's status
		time.Sleep(2 * time.Second)
		last := before
		before = versions()
		return before == last, before
	})
	w.helm(ctx, "upgrade", "--reset-values")
	if after := versions(); after != before {
		w.Errorf("a second helm upgrade changes objects:\n%s\nbefore:\n%s", after, before)
	}
	if out, err := w.today.RunKubectl(ctx, "diff", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", rendered); err != nil || out != "" {
		w.Errorf("kubectl diff: %v\n%s", err, out)
	}
}
