package story

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

// triedName is the name of the job whose pods are tried before the first step, and of its objects. wrongSlot is the pod on the bad node.
const (
	triedName = "tried"
	wrongSlot = 1
)

// triedScripts are the files in /scripts of that job. The first one makes the multiplications of a node check wrong in the pod of index 1,
// as long as it is on the node on which the first pod of that index was.
var triedScripts = map[string]string{
	"sitecustomize.py": `
import os, sys

if os.environ["JOB_COMPLETION_INDEX"] == "1" and any("holdfast_check" in a for a in sys.orig_argv):
    try:
        with open("/tried/node", "x") as f:
            f.write(os.environ["NODE_NAME"])
    except FileExistsError:
        pass
    with open("/tried/node") as f:
        wrong = f.read() == os.environ["NODE_NAME"]
    if wrong:
        import torch

        multiply = torch.matmul

        def matmul(a, b):
            out = multiply(a, b)
            out[3, 5] += 1
            return out

        torch.matmul = matmul
`,
	"train.py": `
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.2)
`,
}

// triedObjects are the job of two pods, which may run on these nodes, and what it needs.
func triedObjects(nodes ...string) []client.Object {
	job := BugJob(corev1.RestartPolicyNever, 0)
	job.Name = triedName
	job.Annotations = map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationNodeCheck: v1alpha1.NodeCheckAlways, v1alpha1.AnnotationStandbys: "off",
	}
	job.Spec.Completions, job.Spec.Parallelism = ptr.To(int32(members)), ptr.To(int32(members))
	pod := &job.Spec.Template.Spec
	pod.TerminationGracePeriodSeconds = ptr.To(int64(1))
	c := &pod.Containers[0]
	c.Command = []string{"bash", "-c", fmt.Sprintf("PATH=$PATH:/opt/holdfast-python/venv/bin PYTHONPATH=$PYTHONPATH:/scripts "+
		"exec torchrun --nnodes=%d --nproc-per-node=1 /scripts/train.py", members)}
	c.Env = []corev1.EnvVar{
		{Name: "OMP_NUM_THREADS", Value: "1"},
		{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
	}
	scripts := harness.ConfigVolume(triedName)
	scripts.Name = "scripts"
	pod.Volumes = append(pod.Volumes, scripts, harness.ClaimVolume(triedName, false))
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: "scripts", MountPath: "/scripts"}, corev1.VolumeMount{Name: triedName, MountPath: "/tried"})
	on := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{on}}},
	}}}
	return []client.Object{
		job, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: triedName}, Data: triedScripts},
		harness.Claim(Namespace, triedName, layout.SharedStorageClass, corev1.ReadWriteMany),
	}
}

// checked reports the result of tries.
func (r *run) checked(ctx context.Context) ([]string, error) { return r.tried.end(ctx) }

// tries plays a job one pod of which multiplies wrongly on its node: the pod is named before the first step and replaced, and its node is
// kept out until it is repaired. The nodes are those of the other job, which may keep its pods there: the spare node is not touched.
func (r *run) tries(ctx context.Context) (saw []string, err error) {
	nodes := make([]string, members)
	for slot := range nodes {
		if nodes[slot], err = r.nodeOf(ctx, slot); err != nil {
			return nil, err
		}
	}
	objects := triedObjects(nodes...)
	for _, o := range objects {
		if err := r.Client().Create(ctx, o); err != nil {
			return nil, err
		}
	}
	var check *v1alpha1.NodeCheck
	if err := r.Until(ctx, "job tried makes steps", 3*time.Minute, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, triedName)
		if err != nil || gang.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		run := gang.Status.Run
		check = run.NodeCheck
		trains := run.Generation == 1 && run.Progress.OptimizerSteps > 0 && len(run.Recoveries) == 0
		return trains, fmt.Sprintf("generation %d, %+v", run.Generation, check)
	}); err != nil {
		return nil, err
	}
	if check == nil || check.Result != "Replaced" || check.Generation != 1 || check.EndedAt == nil ||
		len(check.Named) != 1 || check.Named[0].Slot != wrongSlot {
		return nil, fmt.Errorf("the node check before generation 1 did not name the pod of slot %d alone: %+v", wrongSlot, check)
	}
	bad := check.Named[0]
	saw = []string{fmt.Sprintf("before the first step: %s", bad.Message)}
	after, err := r.keptOut(ctx, bad)
	if err != nil {
		return saw, err
	}
	saw = append(saw, fmt.Sprintf("node %s takes no new pods, %s was replaced by %s on %s, and the job began; its check took %.0f s",
		bad.Node, bad.Pod, after.Name, after.Spec.NodeName, check.EndedAt.Sub(check.StartedAt.Time).Seconds()))
	return saw, errors.Join(r.repaired(ctx, bad.Node), r.forget(ctx, objects))
}

// keptOut checks that the node of a named pod takes no new ones, that an event on the Job says why, and that another node has the new pod.
func (r *run) keptOut(ctx context.Context, bad v1alpha1.NamedPod) (after corev1.Pod, err error) {
	if ok, seen := r.HasEvent(ctx, Namespace, "Job", triedName, v1alpha1.ReasonNodeCheckFailed, bad.Node); !ok {
		return after, fmt.Errorf("no event of the Job names node %s: %s", bad.Node, seen)
	}
	n, err := r.Kube().CoreV1().Nodes().Get(ctx, bad.Node, metav1.GetOptions{})
	if err != nil {
		return after, err
	}
	if o, err := v1alpha1.NodeOutageOf(n); err != nil || o == nil || o.Decision != v1alpha1.DecisionExclude {
		return after, fmt.Errorf("node %s is not excluded: %+v, %v", bad.Node, o, err)
	}
	pods, err := r.Pods(ctx, Namespace, triedName)
	if err != nil {
		return after, err
	}
	for _, p := range pods {
		if slot(p) == wrongSlot && p.Name != bad.Pod && p.Spec.NodeName != bad.Node && p.Status.Phase == corev1.PodRunning {
			return p, nil
		}
	}
	return after, fmt.Errorf("no pod of slot %d runs on another node than %s", wrongSlot, bad.Node)
}

// repaired ends the exclusion of a node, as its administrator does.
func (r *run) repaired(ctx context.Context, node string) error {
	if out, err := r.Holdfast(ctx, "evict", "node/"+node, "--undo"); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out))
	}
	return r.Well(ctx, node)
}

// forget deletes the objects of the job.
func (r *run) forget(ctx context.Context, objects []client.Object) (err error) {
	for _, o := range objects {
		err = errors.Join(err, r.Client().Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	}
	return err
}
