package controller

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/ledger"
	"holdfast.dev/holdfast/elastic/quorum"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
)

// TestSettingsReachTheCoordinator: the coordinator receives the pins that a Gang requests, at most the allowed number, and what is done
// about ranks that stand still. When it loads the Gang it reads the same settings.
func TestSettingsReachTheCoordinator(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	g.UID, g.Generation = "gang-uid", 7
	b, l := newBench(t, g, job), &listener{}
	b.Coordinator = l
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: g.Namespace, Name: g.Name}}
	if _, err := b.reconcileSettings(t.Context(), req); err != nil || l.settings.Supervision != (elastic.Supervision{}) {
		t.Errorf("of a Gang that says nothing about ranks that stand still: %+v, %v", l.settings, err)
	}
	for hang, want := range map[string]elastic.HangMode{
		v1alpha1.HangAct: elastic.HangAct, v1alpha1.HangReport: elastic.HangReport, v1alpha1.HangOff: elastic.HangOff,
	} {
		if g.Spec.Hang = hang; supervisionOf(g).Hang != want {
			t.Errorf("%q is read as %+v", hang, supervisionOf(g))
		}
	}
	g.Spec.Hang, g.Spec.HangTimeoutSeconds = v1alpha1.HangAct, 1800
	g.Spec.MinPods, g.Spec.PodsUnit, g.Spec.ShrinkAfterSeconds, g.Spec.Grow = 4, 2, 45, v1alpha1.GrowWithRestart
	g.Spec.Storage = &v1alpha1.GangStorage{
		Claim:            "steps",
		IntervalSeconds:  60,
		Pins:             []v1alpha1.Checkpoint{{Step: 120, Generation: 3}},
		PinWish:          4,
		Keep:             5,
		KeepEverySeconds: 3600,
	}
	b = newBench(t, g, job)
	b.Coordinator = l
	want := elastic.Settings{
		Storage: elastic.Storage{Every: time.Minute, Retention: elastic.Retention{
			Gang: "gang-uid", Version: 7, Pins: []protocol.Mark{{Step: 120, Generation: 3}}, PinWish: 4, Keep: 5, Every: time.Hour,
		}},
		Supervision: elastic.Supervision{Hang: elastic.HangAct, Timeout: 30 * time.Minute},
		Limits:      quorum.Limits{Min: 4, Unit: 2, ShrinkAfter: 45 * time.Second, Grow: quorum.GrowWithRestart},
	}
	if _, err := b.reconcileSettings(t.Context(), req); err != nil || l.key != key || !reflect.DeepEqual(l.settings, want) {
		t.Errorf("received is %+v of %v, %v", l.settings, l.key, err)
	}
	if _, loaded, _, err := b.Load(t.Context(), key); err != nil || !reflect.DeepEqual(loaded, want) {
		t.Errorf("loaded is %+v, %v", loaded, err)
	}
	l.err = errors.New("busy")
	if _, err := b.reconcileSettings(t.Context(), req); !errors.Is(err, l.err) {
		t.Errorf("where the coordinator cannot take it: %v", err)
	}
	for range 2 * v1alpha1.MaxPins {
		g.Spec.Storage.Pins = append(g.Spec.Storage.Pins, v1alpha1.Checkpoint{Step: 1, Generation: 1})
	}
	if n := len(retentionOf(g).Pins); n != v1alpha1.MaxPins {
		t.Errorf("%d pins of a Gang of a definition without the limit", n)
	}
}

// TestWhatStaysIsBounded: the core keeps at most as many steps as the documentation says, whatever a Gang requests.
func TestWhatStaysIsBounded(t *testing.T) {
	var recorded []elastic.StoredStep
	for i := range int64(1000) {
		recorded = append(recorded, elastic.StoredStep{Mark: protocol.Mark{Step: 1000 - i, Generation: 1}, At: time.Unix((1000-i)*3600, 0)})
	}
	for name, c := range map[string]struct {
		r    elastic.Retention
		want int
	}{
		"by number": {elastic.Retention{Keep: 500}, v1alpha1.MaxKept}, "by time": {elastic.Retention{Every: time.Hour}, v1alpha1.MaxKeptEvery}, "not said": {elastic.Retention{}, v1alpha1.MinKept},
	} {
		if got := len(ledger.Kept(recorded, c.r)); got != c.want {
			t.Errorf("%s: %d stay, want %d", name, got, c.want)
		}
	}
}

// keeper has the coordinator's core on a gang of one pod that copies each step. The records are in a Gang, as the controller writes them.
type keeper struct {
	t      *testing.T
	b      *bench
	s      *elastic.State
	now    time.Time
	report protocol.Report
}

func (k *keeper) say(e elastic.Event) {
	k.t.Helper()
	for _, e := range elastic.Step(k.s, e, k.now) {
		if p, ok := e.(elastic.Persist); ok {
			if err := k.b.Persist(k.t.Context(), key, p.Record); err != nil {
				k.t.Fatal(err)
			}
			k.say(elastic.Stored{Revision: p.Revision, Generation: p.Record.Generation})
		}
	}
}

func (k *keeper) reports(change func(r *protocol.Report)) protocol.Directive {
	k.t.Helper()
	k.report.Rank = slices.Clone(k.report.Rank) // the core keeps the previous slice
	change(&k.report)
	k.report.Sequence++
	k.say(elastic.Reported{Pod: elastic.Pod{UID: "uid-a", Name: "a"}, Report: k.report})
	return k.s.Directive(0, "uid-a")
}

// copies makes the pod seal a step, copy it as ordered and write its manifest, and returns the order.
func (k *keeper) copies(step int64) protocol.Manifest {
	k.t.Helper()
	d := k.reports(func(r *protocol.Report) { r.Rank[0].Step, r.Rank[0].Sealed = step, protocoltest.FirstBranch(step) })
	if d.Copy.Step != step {
		k.t.Fatalf("step %d is to be copied, told is %+v", step, d)
	}
	d = k.reports(func(r *protocol.Report) { r.Rank[0].Copied = protocol.Copied{Mark: d.Copy, Length: 1} })
	if d.Manifest.Mark.Step != step {
		k.t.Fatalf("the manifest of step %d is to be written, told is %+v", step, d)
	}
	k.reports(func(r *protocol.Report) { r.Manifested = d.Manifest.Mark })
	return d.Manifest
}

// TestAStepStaysByTime: the Gang's retention setting is read with its record. No order removes a step that stays because of its time. Each
// later record lists that step, also the record of a coordinator that starts later.
func TestAStepStaysByTime(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	begun := time.Unix(1_700_000_000, 0)
	step := func(step int64, after time.Duration) *v1alpha1.StoredStep {
		return &v1alpha1.StoredStep{Step: step, Generation: 1, At: metav1.NewMicroTime(begun.Add(after))}
	}
	started := metav1.NewMicroTime(begun)
	g.Spec.Members, g.Spec.StateBytes = 1, 1<<20
	g.Spec.Storage = &v1alpha1.GangStorage{Claim: "steps", IntervalSeconds: 60, KeepEverySeconds: 3600}
	g.Status.Run = &v1alpha1.RunStatus{
		Generation: 1,
		StartedAt:  &started,
		State:      v1alpha1.RunState(elastic.Running),
		Durable:    step(20, 10*time.Minute),
		Older:      step(10, 0),
	}
	k := &keeper{
		t:   t,
		b:   newBench(t, g, job),
		now: begun.Add(20 * time.Minute),
		report: protocol.Report{Incarnation: 1, Ranks: 1, Address: "10.0.0.1", Port: 4000, Generation: 1,
			State: protocol.StateRunning, Storage: true, StateBytes: 1 << 20, Rank: []protocol.Rank{{}}},
	}
	for _, c := range []struct {
		step   int64
		spared []int64 // by the order to write the manifest
		kept   []int64 // in the record then
	}{
		{30, []int64{20, 10}, []int64{10}},
		{40, []int64{30, 20, 10}, []int64{10}},
		{50, []int64{40, 30, 10}, []int64{10}},
		{110, []int64{50, 40, 10}, []int64{10}},
		{120, []int64{110, 50, 10}, []int64{10}},
		{130, []int64{120, 110, 10}, []int64{110, 10}},
	} {
		members, storage, record, err := k.b.Load(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		k.s = elastic.New(members, storage.Every, record)
		k.say(elastic.Retain{Retention: storage.Retention})
		k.now = begun.Add(time.Duration(c.step-10) * time.Minute)
		m := k.copies(c.step)
		if got := stepsOf(m.Recorded, func(m protocol.Mark) int64 { return m.Step }); !slices.Equal(got, c.spared) {
			t.Errorf("with the manifest of step %d all below %d but %v goes, want %v", c.step, m.Below.Step, got, c.spared)
		}
		if got := stepsOf(k.b.gang(t).Status.Run.Kept, func(s v1alpha1.StoredStep) int64 { return s.Step }); !slices.Equal(got, c.kept) {
			t.Errorf("after step %d the Gang keeps %v, want %v", c.step, got, c.kept)
		}
	}
}

func stepsOf[T any](of []T, step func(T) int64) (steps []int64) {
	for _, s := range of {
		steps = append(steps, step(s))
	}
	return steps
}
