package kinds

import (
	"context"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
)

const (
	namespace = "kinds"
	// shared is the claim to which state is copied.
	shared = "shared"
)

// TestKinds starts one cluster with all operators for all its tests: to start it costs more than most of them.
func TestKinds(t *testing.T) {
	ctx := t.Context()
	c := harness.Start(t, devcluster.Options{Name: "kinds", Nodes: 3, Replace: true})
	t.Cleanup(func() {
		if t.Failed() {
			dump(context.Background(), c)
		}
	})
	w := &world{Cluster: c, installed: map[*operators.Operator]bool{}}
	w.install(ctx, t)
	for _, part := range []struct {
		name string
		test func(context.Context, *testing.T, *world)
	}{
		{"Published", testPublished},
		{"Examples", testExamples},
		{"Compete", testCompete},
		{"VolcanoPolicies", testVolcanoPolicies},
		{"VolcanoQueue", testVolcanoQueue},
		{"Story", testStory},
		{"RestartPolicies", testRestartPolicies},
		{"ControllersAway", testControllersAway},
		{"Rejected", testRejected},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(ctx, t, w) }) {
			return
		}
	}
}

// world is a cluster with Holdfast, and with those operators that a test needed so far.
type world struct {
	*harness.Cluster
	installed map[*operators.Operator]bool
}

// needs installs the operators that are not there yet.
func (w *world) needs(ctx context.Context, t *testing.T, all ...*operators.Operator) {
	t.Helper()
	for _, o := range all {
		if o == nil || w.installed[o] {
			continue
		}
		if err := o.Install(ctx, w.Cluster, w.Nodes()[0]); err != nil {
			t.Fatal(err)
		}
		w.installed[o] = true
		w.Say("%s serves", o.Name)
	}
}

// install has Holdfast on the cluster, and what pods of the tests mount.
func (w *world) install(ctx context.Context, t *testing.T) {
	t.Helper()
	// The story ends the other nodes.
	if err := w.InstallOn(ctx, w.Nodes()[0]); err != nil {
		t.Fatal(err)
	}
	for _, o := range harness.TrainerRoom(namespace) {
		if err := w.Client().Create(ctx, o); err != nil {
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
