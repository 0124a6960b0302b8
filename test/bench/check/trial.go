package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/harness"
)

const namespace = "bench-check"

// script is what the ranks run after the check.
const script = `
import time
print("trains", flush=True)
time.sleep(3600)
`

// limit is how long a check is waited for.
const limit = 5 * time.Minute

// furnish creates what all jobs share.
func (b *bench) furnish(ctx context.Context) error {
	for _, o := range lives.Room(namespace, map[string]string{"plain.py": script}) {
		if err := b.w.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// notePass notes on the node that a gang with devices has passed a check there. The simulated devices of the cluster are none that torch
// sees, so that a check of this benchmark leaves no pass of them.
func (b *bench) notePass(ctx context.Context) error {
	passes, err := json.Marshal([]v1alpha1.NodePass{{Namespace: namespace, Gang: "earlier", At: metav1.NowMicro(), Devices: pods}})
	if err != nil {
		return err
	}
	note := map[string]any{"metadata": map[string]any{"annotations": map[string]string{v1alpha1.AnnotationPasses: string(passes)}}}
	patch, err := json.Marshal(note)
	if err != nil {
		return err
	}
	nodes := &corev1.NodeList{}
	if err := b.w.Client().List(ctx, nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := b.w.Client().Patch(ctx, &nodes.Items[i], client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("noting a pass on node %s: %w", nodes.Items[i].Name, err)
		}
	}
	return nil
}

// annotationsOf returns what a job of a system requests in a case, and the result that its check must have.
func annotationsOf(kase, system string) (annotations map[string]string, result string) {
	mode := v1alpha1.NodeCheckOff
	switch {
	case system == systemUnchecked:
	case kase == casePassed:
		mode, result = v1alpha1.NodeCheckAuto, string(elastic.CheckSkipped)
	default:
		mode, result = v1alpha1.NodeCheckAlways, string(elastic.CheckPassed)
	}
	return map[string]string{
		v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationStandbys: "off", v1alpha1.AnnotationNodeCheck: mode,
	}, result
}

// underHoldfast starts a gang once.
func (b *bench) underHoldfast(ctx context.Context, kase, system, name string) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		err = errors.Join(err, lives.Remove(context.WithoutCancel(ctx), b.w, namespace, name, time.Minute))
	}()
	line := fmt.Sprintf(`printf '{"bench":"pod","t":%%s}\n' "$EPOCHREALTIME"; exec torchrun --nnodes=%d --nproc-per-node=%d plain.py`,
		pods, ranks)
	spec := lives.Pod(name, line, 1, 1, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	annotations, result := annotationsOf(kase, system)
	if err := b.w.Client().Create(ctx, harness.Job(namespace, name, pods, 0, annotations, spec)); err != nil {
		return err
	}
	output := lives.New()
	go output.Follow(ctx, b.w, namespace, name)
	run, err := b.runs(ctx, name, output)
	if err != nil {
		return err
	}
	check, took := run.NodeCheck, 0.0
	if result != "" {
		if check == nil || check.EndedAt == nil || check.Result != result {
			return fmt.Errorf("the check of healthy pods is not %s: %+v", result, check)
		}
		took = check.EndedAt.Sub(check.StartedAt.Time).Seconds()
	}
	if result == string(elastic.CheckPassed) {
		b.Add(kase, system, checkTime, "s", took)
	}
	start := run.StartedAt.Sub(output.LastBorn()).Seconds()
	b.Add(kase, system, startTime, "s", start)
	b.say("%s, %s: checked in %.1f s, started after %.1f s", kase, system, took, start)
	return nil
}

// runs waits until all ranks of a gang run and the first line of each pod was read.
func (b *bench) runs(ctx context.Context, name string, output *lives.Record) (run *v1alpha1.RunStatus, err error) {
	err = b.w.Until(ctx, name+" runs", limit, func(ctx context.Context) (bool, string) {
		if run, err = lives.Run(ctx, b.w, namespace, name); err != nil {
			return false, err.Error()
		}
		all, err := b.w.Pods(ctx, namespace, name)
		born := 0
		for _, p := range all {
			if _, ok := output.PodBorn(p.Name); ok {
				born++
			}
		}
		return run.StartedAt != nil && born == pods, fmt.Sprintf("%s, %d pods began, %v, check %+v", run.State, born, err, run.NodeCheck)
	})
	return run, err
}
