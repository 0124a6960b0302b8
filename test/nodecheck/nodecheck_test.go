package nodecheck

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

const namespace, shared, pods = "nodecheck", "shared", 3

//go:embed sitecustomize.py
var wrong string

// TestNodeCheck: a gang passes and trains; in another one the pod whose arithmetic is wrong is named and replaced before the first step.
func TestNodeCheck(t *testing.T) {
	ctx := t.Context()
	c := harness.Start(t, devcluster.Options{Name: "nodecheck", Nodes: 2, Replace: true})
	if err := c.Install(ctx); err != nil {
		t.Fatal(err)
	}
	for _, o := range harness.TrainerRoom(namespace) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			m.Data["sitecustomize.py"] = wrong
		}
		if err := c.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("Passes", func(t *testing.T) {
		check, first := play(ctx, t, c, "healthy", "")
		if check.Result != "Passed" || check.Replaced != 0 || first {
			t.Errorf("%+v, a pod was replaced: %v", check, first)
		}
	})
	t.Run("WrongArithmetic", func(t *testing.T) {
		check, replaced := play(ctx, t, c, "wrong", "1")
		found := strings.HasPrefix(check.Message, "pod wrong-1-") && strings.Contains(check.Message, "of a product is")
		if check.Result != "Replaced" || check.Replaced != 1 || !found || !replaced {
			t.Errorf("%+v, a pod was replaced: %v", check, replaced)
		}
		excluded(ctx, t, c, check)
	})
}

// excluded checks that the node that the check named takes no new pods, by the gang's proven word.
func excluded(ctx context.Context, t *testing.T, c *harness.Cluster, check *v1alpha1.NodeCheck) {
	t.Helper()
	nodes := &corev1.NodeList{}
	if err := c.Client().List(ctx, nodes); err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		o, err := v1alpha1.NodeOutageOf(node)
		words, unread := v1alpha1.NodeSuspicionsOf(node)
		if err != nil || unread != nil {
			t.Fatal(err, unread)
		}
		named := strings.Contains(check.Message, " on node "+node.Name+":")
		if out := o != nil && o.Decision == v1alpha1.DecisionExclude && o.Cause == v1alpha1.CauseNodeSuspected; out != named {
			t.Errorf("node %s, named %v: decision %+v", node.Name, named, o)
		}
		if proven := len(words) == 1 && words[0].Proven && words[0].Namespace == namespace; proven != named {
			t.Errorf("node %s, named %v: suspicions %+v", node.Name, named, words)
		}
	}
}

// play runs a job until it trains, and returns its node check and whether the pod of slot 1 was replaced.
func play(ctx context.Context, t *testing.T, c *harness.Cluster, name, index string) (*v1alpha1.NodeCheck, bool) {
	t.Helper()
	line := fmt.Sprintf("env PYTHONPATH=/trainer:$PYTHONPATH torchrun --nnodes=%d --nproc-per-node=1 /trainer/trainer.py 0.05 65536", pods)
	spec := harness.TrainerPod(line, 5, 0)
	main := &spec.Containers[0]
	delete(main.Resources.Limits, layout.GPUResource)
	delete(main.Resources.Requests, layout.GPUResource)
	main.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("1Gi")
	main.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
	main.Env = append(main.Env, corev1.EnvVar{Name: "WRONG_INDEX", Value: index}, corev1.EnvVar{Name: "WRONG_MARK", Value: name},
		corev1.EnvVar{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}})
	spec.Volumes = append(spec.Volumes, harness.ClaimVolume(shared, false))
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: shared, MountPath: "/" + shared})
	annotations := map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationNodeCheck: v1alpha1.NodeCheckAlways, v1alpha1.AnnotationStandbys: "off",
	}
	if err := c.Client().Create(ctx, harness.Job(namespace, name, pods, 0, annotations, spec)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, name) })
	var g *v1alpha1.Gang
	if err := c.Until(ctx, name+" trains", eventually.Timeout, func(ctx context.Context) (bool, string) {
		var err error
		if g, err = c.Gang(ctx, namespace, name); err != nil {
			return false, err.Error()
		}
		r := g.Status.Run
		return r != nil && r.Generation == 1 && r.Progress.OptimizerSteps+r.Progress.Step > 0, harness.Says(g)
	}); err != nil {
		t.Fatal(err)
	}
	check := g.Status.Run.NodeCheck
	if check == nil || check.EndedAt == nil || len(g.Status.Run.Recoveries) > 0 {
		t.Fatalf("check %+v, recoveries %+v", check, g.Status.Run.Recoveries)
	}
	_, replaced, err := c.Members(ctx, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s in %s: %s", name, check.Result, check.EndedAt.Sub(check.StartedAt.Time), check.Message)
	return check, len(replaced) == 1 && strings.Contains(check.Message, replaced[0].Name) || len(replaced) == 0 && check.Replaced > 0
}

// remove removes a job, after a failure with all that people would look at.
func remove(t *testing.T, c *harness.Cluster, name string) {
	ctx := context.Background()
	if t.Failed() {
		for _, args := range [][]string{
			{"get", "gang", "-n", namespace, name, "-o", "yaml"},
			{"get", "pods", "-n", namespace, "-o", "wide"},
			{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
			{"logs", "-n", namespace, "-l", v1alpha1.LabelGang + "=" + name, "--tail=40", "--prefix"},
		} {
			out, err := c.RunKubectl(ctx, args...)
			c.Say("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if _, err := c.RunKubectl(ctx, "delete", "job", name, "-n", namespace, "--wait=false"); err != nil {
		t.Error(err)
	}
}
