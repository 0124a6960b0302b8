package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

const (
	fewerName = "fewer"
	fewerPods = 3
	// lossMost bounds the relative difference of a loss: the ranks add the same samples in another order.
	lossMost = 1e-5
)

// fewerScript keeps its global batch at any number of ranks, and prints each step's loss over all samples.
const fewerScript = `
import os, sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
try:
    import holdfast
except ImportError:
    holdfast = None
BATCH, LAST = 24, int(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
model, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
data = torch.randn(4096, 16)
wanted = data.sin().sum(1, keepdim=True)
ck, step = None, 0
if holdfast is not None:
    ck = holdfast.attach()
    ck.track(model=model, optimizer=optimizer)
    step = ck.restore()
while step < LAST:
    step += 1
    share = torch.arange(BATCH * rank // world, BATCH * (rank + 1) // world) + BATCH * (step - 1)
    part = (model(data[share % len(data)]) - wanted[share % len(data)]).square().sum() / BATCH
    optimizer.zero_grad()
    (part * world).backward()
    optimizer.step()
    loss = part.detach().double()
    dist.all_reduce(loss)
    if rank == 0:
        print("step %d rank 0 loss %s" % (step, loss.item().hex()), flush=True)
    if ck is not None:
        ck.save(step)
        time.sleep(0.1)
`

// fewerJob has a pod for each node, and goes on with one.
func fewerJob() *batchv1.Job {
	spec := harness.TrainerPod(fmt.Sprintf("torchrun --nnodes=1:%d --nproc-per-node=1 /script/fewer.py 1000000", fewerPods), 5, 2)
	c := &spec.Containers[0]
	c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("1Gi")
	c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
	spec.Volumes = append(spec.Volumes, harness.ConfigVolume("script"))
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "script", MountPath: "/script"})
	return harness.Job(Namespace, fewerName, fewerPods, 0, map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStateSize: "1Mi", v1alpha1.AnnotationMinPods: "1",
	}, spec)
}

// GoesOn switches a node off under a job that goes on with fewer pods, and on again, and compares the losses with an undisturbed run's.
func GoesOn(ctx context.Context, w *World) error {
	w.Say("a job that goes on with fewer pods")
	if err := errors.Join(w.InstallOn(ctx, w.Nodes()[0]), w.furnishFewer(ctx)); err != nil {
		return err
	}
	r := &run{World: w, steps: NewSteps(), endComparison: func() {}}
	if err := w.Client().Create(ctx, fewerJob()); err != nil {
		return err
	}
	if err := r.runsWith(ctx, fewerPods, 0); err != nil {
		return err
	}
	first, lost, err := r.fewerNodes(ctx)
	if err != nil {
		return err
	}
	w.follow(ctx, first, r.steps)
	if err := r.stepsMore(ctx, 30); err != nil {
		return err
	}
	off := time.Now()
	if err := w.Node(lost).Kill(); err != nil {
		return err
	}
	if err := r.runsWith(ctx, fewerPods-1, 1); err != nil {
		return err
	}
	g, err := w.gang(ctx, fewerName)
	if err != nil {
		return err
	}
	w.Say("  ✓ %s is switched off: after %.1f s the job %s", lost, time.Since(off).Seconds(), g.Status.Run.Progress.Fewer)
	if err := r.stepsMore(ctx, 50); err != nil {
		return err
	}
	on := time.Now()
	if err := w.Node(lost).Revive(); err != nil {
		return err
	}
	if err := r.runsWith(ctx, fewerPods, g.Status.Run.Generation); err != nil {
		return err
	}
	w.Say("  ✓ %s is switched on: after %.1f s the job trains with all %d pods", lost, time.Since(on).Seconds(), fewerPods)
	if err := r.stepsMore(ctx, 50); err != nil {
		return err
	}
	return r.oneLine(ctx)
}

// furnishFewer creates what the job needs.
func (w *World) furnishFewer(ctx context.Context) error {
	script := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "script"}, Data: map[string]string{"fewer.py": fewerScript}}
	for _, o := range append(harness.TrainerRoom(Namespace), client.Object(script)) {
		if err := w.Client().Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// runsWith waits until the job trains with so many pods in a generation after another one.
func (r *run) runsWith(ctx context.Context, pods int, after int64) error {
	return r.Until(ctx, fmt.Sprintf("the job trains with %d pods", pods), 4*time.Minute, func(ctx context.Context) (bool, string) {
		g, err := r.gang(ctx, fewerName)
		if err != nil || g.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		now := g.Status.Run
		return g.Status.Phase == v1alpha1.PhaseRunning && now.Generation > after && fewerPods-len(now.Out) == pods &&
				now.Progress.Step > now.RestoreStep, fmt.Sprintf("%s, generation %d without %v, step %d: %s", g.Status.Phase, now.Generation, now.Out,
				now.Progress.Step, harness.Says(g))
	})
}

// fewerNodes returns the pod of rank 0, and a node of another one without the control plane.
func (r *run) fewerNodes(ctx context.Context) (first, lost string, err error) {
	pods, err := r.Pods(ctx, Namespace, fewerName)
	for _, p := range pods {
		switch {
		case slot(p) == 0:
			first = p.Name
		case p.Spec.NodeName != r.Nodes()[0].Name:
			lost = p.Spec.NodeName
		}
	}
	if err == nil && (first == "" || lost == "") {
		err = fmt.Errorf("of %d pods none is of rank 0, or none may be lost", len(pods))
	}
	return first, lost, err
}

// stepsMore waits for so many further steps.
func (r *run) stepsMore(ctx context.Context, n int64) error {
	from := r.steps.Lowest(1)
	return r.Until(ctx, fmt.Sprintf("%d steps more", n), 2*time.Minute, func(context.Context) (bool, string) {
		return r.steps.Lowest(1) >= from+n, fmt.Sprintf("step %d; %v", r.steps.Lowest(1), r.steps.Tail(2))
	})
}

// oneLine compares the losses of all steps with those of a run of one process on this machine.
func (r *run) oneLine(ctx context.Context) error {
	last := r.steps.Lowest(1)
	cmd := exec.CommandContext(ctx, python, "-c", fewerScript, fmt.Sprint(last))
	cmd.Env = append(os.Environ(), "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29571")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the undisturbed run: %w", err)
	}
	alone := NewSteps()
	if err := alone.Read(bytes.NewReader(out)); err != nil {
		return err
	}
	worst, again, err := apart(r.steps.Since(0), alone.Since(0), last)
	if err != nil {
		return err
	}
	r.Say("  ✓ the loss curve is one line: %d steps, %d of them done again, no loss differs from that of one process by more than %.1e", last, again, worst)
	return nil
}

// apart returns the largest relative difference of the losses up to a step, and how many steps were done again.
func apart(disturbed, alone []Loss, last int64) (worst float64, again int, err error) {
	want, seen := map[int64]float64{}, map[int64]bool{}
	for _, l := range alone {
		if want[l.Step], err = strconv.ParseFloat(l.Bits, 64); err != nil {
			return 0, 0, err
		}
	}
	for _, l := range disturbed {
		got, err := strconv.ParseFloat(l.Bits, 64)
		if err != nil {
			return 0, 0, err
		}
		if l.Step > last {
			continue
		}
		if seen[l.Step] {
			again++
		}
		seen[l.Step] = true
		worst = max(worst, math.Abs(got-want[l.Step])/math.Abs(want[l.Step]))
	}
	switch {
	case int64(len(seen)) != last:
		return worst, again, fmt.Errorf("%d of %d steps have a loss", len(seen), last)
	case !(worst <= lossMost):
		return worst, again, fmt.Errorf("a loss differs by %.1e, at most %.0e", worst, lossMost)
	}
	return worst, again, nil
}
