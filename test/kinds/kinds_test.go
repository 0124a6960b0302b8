package kinds

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

const namespace = "kinds"

// TestKinds starts one cluster with all operators for all its tests: to start it costs more than most of them.
func TestKinds(t *testing.T) {
	ctx := t.Context()
	c := harness.Start(t, devcluster.Options{Name: "kinds", Nodes: 3, Replace: true})
	t.Cleanup(func() {
		if t.Failed() {
			dump(context.Background(), c)
		}
	})
	install(ctx, t, c)
	for _, part := range []struct {
		name string
		test func(context.Context, *testing.T, *harness.Cluster)
	}{
		{"Examples", testExamples},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(ctx, t, c) }) {
			return
		}
	}
}

// install has Holdfast and all operators on the cluster, and what pods of the tests mount.
func install(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	if err := c.Install(ctx); err != nil {
		t.Fatal(err)
	}
	for _, o := range operators.All {
		if err := o.Install(ctx, c, c.Nodes()[0]); err != nil {
			t.Fatal(err)
		}
		c.Say("%s serves", o.Name)
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: python},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
				StorageClassName: ptr.To("holdfast-python"),
				Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		},
	} {
		if err := c.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
}

// until is Until that ends the test.
func until(ctx context.Context, t *testing.T, c *harness.Cluster, what string, holds func(context.Context) (bool, string)) {
	t.Helper()
	if err := c.Until(ctx, what, eventually.Timeout, holds); err != nil {
		t.Fatal(err)
	}
}

// dump prints what people would look at.
func dump(ctx context.Context, c *harness.Cluster) {
	commands := [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh,jobsets,pytorchjobs,jobs,gangs", "-n", namespace, "-o", "yaml"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
	}
	for _, o := range operators.All {
		commands = append(commands, []string{"logs", "-n", o.Namespace, "-l", "none!=of-them", "--all-containers", "--prefix", "--tail=40"})
	}
	for _, args := range commands {
		out, err := c.RunKubectl(ctx, args...)
		c.Say("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
