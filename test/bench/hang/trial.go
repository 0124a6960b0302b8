package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/harness"
)

//go:embed plain.py
var plainScript string

const namespace = "bench-hang"

// furnish creates what all jobs share.
func (b *bench) furnish(ctx context.Context) error {
	for _, o := range lives.Room(namespace, map[string]string{"plain.py": plainScript}) {
		if err := b.w.Client().Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// trial is one job under Holdfast that stands still once.
type trial struct {
	*bench
	*lives.Record
	name string
	// order is when the ranks were ordered to end; resumed is how they went on.
	order   time.Time
	resumed lives.Resumption
}

// underHoldfast plays a fault once.
func (b *bench) underHoldfast(ctx context.Context, fault string, n int) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{bench: b, Record: lives.New(), name: fmt.Sprintf("%s-%d", fault, n)}
	defer func() {
		err = errors.Join(err, lives.Remove(context.WithoutCancel(ctx), b.w, namespace, t.name, time.Minute))
	}()
	if err := t.begin(ctx, fault); err != nil {
		return err
	}
	pod, pid, _ := t.Newest(odd)
	host, err := b.w.HostPID(ctx, namespace, pod, lives.Container, pid)
	if err != nil {
		return err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root%s/play", host, lives.StateAt), nil, 0o666); err != nil {
		return err
	}
	still, err := stoodStill(ctx, t.Record)
	if err != nil {
		return err
	}
	o, err := t.watch(ctx, fault, still)
	if err != nil {
		return err
	}
	b.note(fault, systemHoldfast, o, b.limit().Seconds())
	b.say("%s, %s: %s", fault, systemHoldfast, o)
	return nil
}

// begin creates the job, and returns once it trains and every rank has a standby.
func (t *trial) begin(ctx context.Context, fault string) error {
	line := fmt.Sprintf("torchrun --standalone --nproc-per-node=%d plain.py %s %s", ranks, lives.StateAt, fault)
	state := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("128Mi"))}
	pod := lives.Pod(t.name, line, 1, 1, corev1.VolumeSource{EmptyDir: state})
	annotations := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHang: "act"}
	if err := t.w.Client().Create(ctx, harness.Job(namespace, t.name, 1, 0, annotations, pod)); err != nil {
		return err
	}
	go t.Follow(ctx, t.w, namespace, t.name)
	return t.w.Until(ctx, "steps of "+t.name+" and a standby for each rank", 4*time.Minute, func(ctx context.Context) (bool, string) {
		run, err := lives.Run(ctx, t.w, namespace, t.name)
		if err != nil {
			return false, err.Error()
		}
		steps := len(t.RatesBetween(time.Time{}, time.Now()))
		return steps >= 3 && run.Progress.StandbysReady == ranks, fmt.Sprintf("%s, %d standbys; last lines: %q",
			t.Progress(ranks, time.Time{}), run.Progress.StandbysReady, t.Tail(2))
	})
}

// acts reports whether Holdfast ends ranks after this fault within the time that is waited: not ranks that someone stopped, and ranks that
// wait for something outside only after minutes (elastic/hang.go).
func acts(fault string) bool { return fault == faultInside || fault == faultCollective }

// watch waits for the event, and for new steps where ranks are ended.
func (t *trial) watch(ctx context.Context, fault string, still time.Time) (o outcome, err error) {
	var seen time.Time
	err = until(ctx, t.limit(), "the report", func() bool {
		text, found := t.reportOf(ctx)
		if found {
			seen, o.names = time.Now(), ranksIn(text)
			t.say("  %s", text)
		}
		return found
	}, t.last)
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	if err == nil {
		o.reported = seen.Sub(still).Seconds()
	}
	left := time.Until(still.Add(t.limit()))
	if !acts(fault) {
		left = min(left, 10*time.Second)
	}
	if err := until(ctx, left, "new steps", func() bool { return t.noteResumed(ctx, still) }, t.last); err == nil {
		o.end(still, t.order, t.resumed)
	}
	return o, ctx.Err()
}

func (t *trial) last() string { return fmt.Sprintf("the last lines: %q", t.Tail(6)) }

// reportOf returns the text of the job's event StandsStill.
func (t *trial) reportOf(ctx context.Context) (string, bool) {
	list, err := t.w.Kube().CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + t.name})
	if err != nil {
		return "", false
	}
	for _, e := range list.Items {
		if e.Reason == v1alpha1.ReasonStandsStill && strings.HasPrefix(e.Message, "no step for") {
			return e.Message, true
		}
	}
	return "", false
}

// noteResumed notes how the ranks went on. It reports whether all have made a new step, and Holdfast has recorded the order to end them.
func (t *trial) noteResumed(ctx context.Context, still time.Time) (ok bool) {
	if t.resumed, ok = t.Resumed(ranks, still); !ok {
		return false
	}
	run, err := lives.Run(ctx, t.w, namespace, t.name)
	if err != nil || len(run.Recoveries) == 0 {
		return false
	}
	r := run.Recoveries[len(run.Recoveries)-1]
	if r.DetectMs == nil {
		return false
	}
	t.order = r.DetectedAt.Add(time.Duration(*r.DetectMs) * time.Millisecond)
	return true
}

// stoodStill waits until the rank says that it stands still, and returns when that was.
func stoodStill(ctx context.Context, rec *lives.Record) (at time.Time, err error) {
	err = until(ctx, 30*time.Second, "a rank that stands still", func() bool {
		said := rec.Seconds("still")
		if len(said) == 0 {
			return false
		}
		at = time.Unix(0, int64(said[0]*1e9))
		return true
	}, func() string { return fmt.Sprintf("the last lines: %q", rec.Tail(6)) })
	return at, err
}

func until(ctx context.Context, limit time.Duration, what string, holds func() bool, seen func() string) error {
	return eventually.Wait(ctx, what, limit, func(context.Context) (bool, any) { return holds(), seen() })
}

// end records that the ranks were ended and went on.
func (o *outcome) end(still, ordered time.Time, resumed lives.Resumption) {
	o.ordered = ordered.Sub(still).Seconds()
	o.stepped = resumed.Stepped.Sub(ordered).Seconds()
	o.started = resumed.Stepped.Sub(resumed.Started).Seconds()
	o.again = resumed.Recomputed
}

// String describes an outcome in one line.
func (o outcome) String() string {
	text := "no report"
	if o.reported > 0 {
		text = fmt.Sprintf("reported after %.1f s, names ranks %v", o.reported, o.names)
	}
	if o.ordered == 0 {
		return text + "; no new steps"
	}
	return fmt.Sprintf("%s; ended after %.1f s, new steps %.2f s later, %d steps again", text, o.ordered, o.stepped, o.again)
}
