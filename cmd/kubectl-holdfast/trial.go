package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/doctor"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/preview"
)

// coordinatorName is the name that the agents of all pods dial.
func coordinatorName() string { return ownName("holdfast-coordinator.") + ownNamespace() + ".svc" }

// What a trial's pod requests.
var (
	trialCPU    = resource.MustParse("100m")
	trialMemory = resource.MustParse("64Mi")
)

// trialEvery is how often a trial is looked at; trialForget bounds the deletion of its Job.
const (
	trialEvery  = 500 * time.Millisecond
	trialForget = 10 * time.Second
)

// trials creates a Job on each network, waits for both, and deletes them.
func (r *factReader) trials(ctx context.Context, dryRun doctor.DryRun, wait time.Duration) []doctor.Trial {
	networks := []string{doctor.PodNetwork, doctor.NodeNetwork}
	trials := make([]doctor.Trial, len(networks))
	image, why := "", dryRun.Refused
	switch {
	case dryRun.NotAllowed:
		why = "you may not create Jobs"
	case r.admitted != nil:
		image, why = r.agentImage(ctx)
	}
	var all sync.WaitGroup
	for i, network := range networks {
		trials[i] = doctor.Trial{Network: network, Refused: why}
		if why == "" {
			all.Go(func() { r.try(ctx, &trials[i], image, wait) })
		}
	}
	all.Wait()
	return trials
}

// agentImage is the image that admission would put into a pod; it has the program of the trial, too.
func (r *factReader) agentImage(ctx context.Context) (image, why string) {
	pod := preview.PodOf(r.admitted, 0)
	if err := r.Create(ctx, pod, client.DryRunAll); err != nil {
		return "", err.Error()
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name == "holdfast-install" {
			return c.Image, ""
		}
	}
	return "", "the API server does not put Holdfast's agent into a pod"
}

// try plays one trial.
func (r *factReader) try(ctx context.Context, t *doctor.Trial, image string, wait time.Duration) {
	job := trialJob("holdfast-doctor-"+t.Network+"-"+rand.String(5), r.namespace, image, t.Network == doctor.NodeNetwork)
	job.Spec.ActiveDeadlineSeconds = ptr.To(int64(wait/time.Second) + 60) // so that it ends even if this program is killed
	if err := r.Create(ctx, job); err != nil {
		t.Refused = err.Error()
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), trialForget)
		defer cancel()
		_ = r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground)) // its time to live ends it otherwise
	}()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(trialEvery)
	defer tick.Stop()
	for {
		if r.look(ctx, t, client.ObjectKeyFromObject(job)) {
			return
		}
		select {
		case <-ctx.Done():
			if t.Waits == "" {
				t.Waits = "it did not end within " + wait.String()
			}
			return
		case <-tick.C:
		}
	}
}

// look reads the state of a trial; done: it will not change any more.
func (r *factReader) look(ctx context.Context, t *doctor.Trial, key client.ObjectKey) (done bool) {
	pods := &corev1.PodList{}
	if err := r.List(ctx, pods, client.InNamespace(key.Namespace), client.MatchingLabels{v1alpha1.LabelGang: key.Name}); err != nil {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Waits = err.Error()
		}
		return apierrors.IsForbidden(err)
	}
	t.Waits = r.gangWaits(ctx, key)
	if len(pods.Items) == 0 {
		if said := r.failedCreate(ctx, key); said != "" {
			t.Refused = said
			return true
		}
		return false
	}
	pod := &pods.Items[0]
	t.Placed = t.Placed || pod.Spec.NodeName != ""
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case s.Name == "holdfast-install" && (s.State.Terminated != nil || s.State.Running != nil):
			t.Pulled = true
		case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
			t.Waits = s.State.Waiting.Reason + ": " + s.State.Waiting.Message
		}
		if s.Name == "doctor" && s.State.Terminated != nil {
			t.Ended = s.State.Terminated.ExitCode == 0
			t.Reached = r.output(ctx, pod)
			return true
		}
	}
	return false
}

// gangWaits is what the Gang says that it waits for.
func (r *factReader) gangWaits(ctx context.Context, key client.ObjectKey) string {
	g := &v1alpha1.Gang{}
	if r.Get(ctx, key, g) != nil {
		return ""
	}
	for _, name := range []string{v1alpha1.ConditionPlaced, v1alpha1.ConditionRunning} {
		if c := meta.FindStatusCondition(g.Status.Conditions, name); c != nil && c.Status != metav1.ConditionTrue {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// failedCreate is why the Job controller cannot create the pod: a quota, or pod security.
func (r *factReader) failedCreate(ctx context.Context, key client.ObjectKey) string {
	events := &corev1.EventList{}
	if r.List(ctx, events, client.InNamespace(key.Namespace), client.MatchingFields{"involvedObject.name": key.Name, "reason": "FailedCreate"}) != nil {
		return ""
	}
	for _, e := range events.Items {
		return e.Message
	}
	return ""
}

// output is what the trial's command printed; nil: it cannot be read.
func (r *factReader) output(ctx context.Context, pod *corev1.Pod) *doctor.Reached {
	kube, err := kubernetes.NewForConfig(r.cfg)
	if err != nil {
		return nil
	}
	options := &corev1.PodLogOptions{Container: "doctor", LimitBytes: ptr.To[int64](64 << 10)}
	lines, err := kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return nil
	}
	defer lines.Close()
	for scan := bufio.NewScanner(lines); scan.Scan(); {
		reached := &doctor.Reached{}
		if text := scan.Text(); strings.Contains(text, "esolved") && json.Unmarshal([]byte(text), reached) == nil {
			return reached
		}
	}
	return nil
}
