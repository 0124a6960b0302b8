package story

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/harness"
)

// feedStep is the step for which rank 1 of feedScript waits.
const feedStep = 20

// feedScript trains until it is killed. At step feedStep, rank 1 waits for data from a named pipe that has no writer.
const feedScript = `
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def next_batch(step):
    if rank == 1 and step == int(sys.argv[1]):
        os.mkfifo("/tmp/feed")
        with open("/tmp/feed") as feed:
            feed.read()
    return torch.ones(8, 8)
step = 0
while True:
    step += 1
    optimizer.zero_grad()
    model(next_batch(step)).square().mean().backward()
    optimizer.step()
    time.sleep(0.1)
`

// feedJob is an opted-in job of one pod and two ranks that runs feedScript.
func feedJob() *batchv1.Job {
	job := BugJob(corev1.RestartPolicyNever, 0)
	job.Name = "feed"
	command := job.Spec.Template.Spec.Containers[0].Command
	command[len(command)-1] = feedScript
	job.Spec.Template.Spec.Containers[0].Command = append(command, strconv.Itoa(feedStep))
	return job
}

// stands returns what the job whose rank 1 waits showed.
func (r *run) stands(ctx context.Context) ([]string, error) { return r.still.end(ctx) }

// standsStill plays a job whose rank 1 waits for data that does not come: the rank and its function are named. After that the data comes,
// and the job continues without a restart.
func (r *run) standsStill(ctx context.Context) ([]string, error) {
	job := feedJob()
	if err := r.Client().Create(ctx, job); err != nil {
		return nil, err
	}
	var found *v1alpha1.Standstill
	var stepped time.Time
	if err := r.Until(ctx, "a verdict on the ranks of job feed", 4*time.Minute, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, job.Name)
		if err != nil || gang.Status.Run == nil {
			return false, fmt.Sprint(err)
		}
		if p := gang.Status.Run.Progress; p.Standstill == nil {
			return false, fmt.Sprintf("step %d", p.OptimizerSteps)
		}
		found = gang.Status.Run.Progress.Standstill
		stepped = found.Since.Time
		return found.Verdict == v1alpha1.CauseWaitsOutside, fmt.Sprintf("%+v", found)
	}); err != nil {
		return nil, err
	}
	took := time.Since(stepped)
	for _, want := range []string{"rank 1 on ", ": the opening of a named pipe, in next_batch of ", "rank 0 on ", ": all_reduce "} {
		if !strings.Contains(found.Message, want) {
			return nil, fmt.Errorf("the verdict %q lacks %q", found.Message, want)
		}
	}
	explained, err := r.Explain(ctx, Namespace, job.Name)
	if err != nil {
		return nil, err
	}
	if joined := strings.Join(strings.Fields(explained), " "); !strings.Contains(joined, found.Message) {
		return nil, fmt.Errorf("explain does not show %q: %s", found.Message, explained)
	}
	saw := []string{fmt.Sprintf("named %.0f s after the last step: %s", took.Seconds(), found.Message)}
	if err := r.feed(ctx, job.Name); err != nil {
		return saw, err
	}
	if err := r.Until(ctx, "job feed makes steps again", time.Minute, func(ctx context.Context) (bool, string) {
		gang, err := r.gang(ctx, job.Name)
		if err != nil {
			return false, err.Error()
		}
		run := gang.Status.Run
		return run.Progress.Standstill == nil && run.Progress.OptimizerSteps >= feedStep && run.Generation == 1 && len(run.Recoveries) == 0,
			fmt.Sprintf("generation %d, step %d, %+v", run.Generation, run.Progress.OptimizerSteps, run.Progress.Standstill)
	}); err != nil {
		return saw, err
	}
	saw = append(saw, "the data came, and the job continued: nothing was restarted")
	return saw, r.Client().Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// feed writes what rank 1 of feedScript waits for.
func (r *run) feed(ctx context.Context, job string) error {
	pods, err := r.Pods(ctx, Namespace, job)
	if err != nil || len(pods) != 1 {
		return fmt.Errorf("job %s has %d pods, %v", job, len(pods), err)
	}
	agent, err := r.Find(ctx, Namespace, pods[0].Name, Training, harness.Agent)
	if err != nil {
		return err
	}
	pipe, err := os.OpenFile(fmt.Sprintf("/proc/%d/root/tmp/feed", agent.Host), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("opening the pipe that rank 1 reads: %w", err)
	}
	return pipe.Close()
}
