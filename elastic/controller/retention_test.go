package controller

import (
	"errors"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/protocol"
)

// TestPinsAreTold: the coordinator hears what a Gang asks for, and reads the same when it loads it; never more than may be.
func TestPinsAreTold(t *testing.T) {
	g, job := objects(corev1.RestartPolicyNever, 0)
	g.UID, g.Generation = "gang-uid", 7
	b, l := newBench(t, g, job), &listener{}
	b.Coordinator = l
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: g.Namespace, Name: g.Name}}
	if _, err := b.reconcileRetention(t.Context(), req); err != nil || l.calls != 0 {
		t.Errorf("without storage: %d calls, %v", l.calls, err)
	}
	g.Spec.Storage = &v1alpha1.GangStorage{Claim: "steps", IntervalSeconds: 60, Pins: []v1alpha1.Checkpoint{{Step: 120, Generation: 3}}, PinWish: 4, Keep: 5, KeepEverySeconds: 3600}
	b = newBench(t, g, job)
	b.Coordinator = l
	want := elastic.Retention{Gang: "gang-uid", Version: 7, Pins: []protocol.Mark{{Step: 120, Generation: 3}}, PinWish: 4, Keep: 5, Every: time.Hour}
	if _, err := b.reconcileRetention(t.Context(), req); err != nil || l.key != key || !reflect.DeepEqual(l.retention, want) {
		t.Errorf("told is %+v of %v, %v", l.retention, l.key, err)
	}
	if _, storage, _, err := b.Load(t.Context(), key); err != nil || !reflect.DeepEqual(storage.Retention, want) || storage.Every.Seconds() != 60 {
		t.Errorf("loaded is %+v, %v", storage, err)
	}
	l.err = errors.New("busy")
	if _, err := b.reconcileRetention(t.Context(), req); !errors.Is(err, l.err) {
		t.Errorf("where the coordinator cannot take it: %v", err)
	}
	for range 2 * v1alpha1.MaxPins {
		g.Spec.Storage.Pins = append(g.Spec.Storage.Pins, v1alpha1.Checkpoint{Step: 1, Generation: 1})
	}
	if n := len(retentionOf(g).Pins); n != v1alpha1.MaxPins {
		t.Errorf("%d pins of a Gang of a definition without the limit", n)
	}
}

// TestWhatStaysIsBounded: the core keeps as many as people are told, whatever a Gang says.
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
		if got := len(elastic.Kept(recorded, c.r)); got != c.want {
			t.Errorf("%s: %d stay, want %d", name, got, c.want)
		}
	}
}
