package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth"
)

// TestReleasedBy: the GPUs are released for a user's annotation, and for the label that NVIDIA's operator sets while it needs the driver,
// but for no other state of the operator's upgrade.
func TestReleasedBy(t *testing.T) {
	for _, c := range []struct {
		annotation *string
		labels     map[string]string
		want       string
	}{
		{want: ""},
		{annotation: new("reset"), want: "annotation holdfast.dev/release-gpus=reset"},
		{annotation: new(""), want: "annotation holdfast.dev/release-gpus="},
		{annotation: new("false"), want: ""},
		{annotation: new(strings.Repeat("ä", 50)), want: "annotation holdfast.dev/release-gpus=" + strings.Repeat("ä", 32)},
		{labels: map[string]string{"nvidia.com/gpu-driver-upgrade-state": "upgrade-required"}, want: ""},
		{labels: map[string]string{"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, want: ""},
		{labels: map[string]string{"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}, want: "label nvidia.com/gpu-driver-upgrade-state=pod-restart-required"},
		{labels: map[string]string{"nvidia.com/gpu-driver-upgrade-state": "validation-required"}, want: ""},
		{labels: map[string]string{"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}, want: ""},
		{labels: map[string]string{"nvidia.com/gpu.deploy.client": "true", "nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade", "nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"},
			want: "label nvidia.com/gpu.deploy.dcgm=paused-for-driver-upgrade"},
		{labels: map[string]string{"nvidia.com/gpu.deploy.client": "paused-for-mig-change"}, want: "label nvidia.com/gpu.deploy.client=paused-for-mig-change"},
		{labels: map[string]string{"nvidia.com/gpu.deploy.client": "false"}, want: ""},
	} {
		n := &object{}
		if n.Metadata.Labels = c.labels; c.annotation != nil {
			n.Metadata.Annotations = map[string]string{v1alpha1.AnnotationReleaseGPUs: *c.annotation}
		}
		if got := releasedBy(n); got != c.want {
			t.Errorf("%v: %q, not %q", c, got, c.want)
		}
	}
}

// watched serves watches of Nodes: each sends the events of a list and then ends, or is refused.
type watched struct {
	t       *testing.T
	mu      sync.Mutex
	watches [][]string
	asked   []string
}

func (s *watched) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.URL.Path+" "+r.URL.Query().Get("fieldSelector")+" "+r.URL.Query().Get("watch"))
	if len(s.watches) == 0 {
		<-r.Context().Done()
		return
	}
	events := s.watches[0]
	if s.watches = s.watches[1:]; events == nil {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	for _, e := range events {
		fmt.Fprintln(w, e)
	}
}

func said(kind, version, annotation string) string {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: version}}
	if annotation != "" {
		n.Annotations = map[string]string{v1alpha1.AnnotationReleaseGPUs: annotation}
	}
	text, _ := json.Marshal(map[string]any{"type": kind, "object": n})
	return string(text)
}

// TestFollow: each change is reported once and in order, and an older version is not. A watch that ends or is refused is started again.
func TestFollow(t *testing.T) {
	s := &watched{t: t, watches: [][]string{
		{said("ADDED", "5", ""), said("MODIFIED", "7", "reset"), said("MODIFIED", "8", "reset")},
		nil,
		{said("ADDED", "6", ""), said("MODIFIED", "9", "driver"), `{"type":"ERROR","object":{"code":410}}`},
		{said("ADDED", "10", "")},
	}}
	web := httptest.NewServer(s)
	defer web.Close()
	reported := make(chan string, 10)
	w := New(
		Options{
			Client:   web.Client(),
			Server:   web.URL,
			Node:     "n1",
			Log:      slog.New(slog.DiscardHandler),
			Released: func(by string) { reported <- by },
		},
	)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Follow(ctx); close(done) }()
	var all []string
	eventually.Holds(t, "all is reported", func() (bool, any) {
		select {
		case by := <-reported:
			all = append(all, by)
		default:
		}
		return len(all) == 3, all
	})
	cancel()
	<-done
	if want := []string{"annotation holdfast.dev/release-gpus=reset", "annotation holdfast.dev/release-gpus=driver", ""}; !slices.Equal(all, want) {
		t.Errorf("reported %q, want %q", all, want)
	}
	if s.asked[0] != "/api/v1/nodes metadata.name=n1 true" {
		t.Errorf("asked for %q", s.asked[0])
	}
}

// TestPodsThatRepair: pods of NVIDIA's operator have the tolerations of the operator and of the DaemonSet controller. They may be placed on
// a node whose driver is gone or whose GPUs are released, whatever else is wrong with it, and on no other excluded node.
func TestPodsThatRepair(t *testing.T) {
	operators := []corev1.Toleration{
		{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, // of the driver's DaemonSet
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	}
	keepsAway := func(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }
	at := metav1.Now().Time
	fold := func(signals ...nodehealth.Signal) nodehealth.Verdict {
		s := nodehealth.New("b")
		for _, sig := range signals {
			sig.At = at
			s = nodehealth.Fold(s, sig, at)
		}
		return nodehealth.Assess(s, at)
	}
	reads := nodehealth.Signal{Kind: nodehealth.Read, Readings: []nodehealth.Reading{{Device: "GPU-a"}}}
	sick := nodehealth.Signal{Kind: nodehealth.Read, Readings: []nodehealth.Reading{{Device: "GPU-a", Recovery: nodehealth.RecoveryGPUReset}}}
	gone := nodehealth.Signal{Kind: nodehealth.Blind, Text: "the driver is not loaded"}
	released := nodehealth.Signal{Kind: nodehealth.Released, Text: "a word"}
	for name, c := range map[string]struct {
		verdict nodehealth.Verdict
		come    bool
	}{
		"driver gone":                       {fold(reads, gone), true},
		"released":                          {fold(reads, released), true},
		"GPU to be reset":                   {fold(sick), false},
		"GPU to be reset, the driver gone":  {fold(sick, gone), true},
		"GPU to be reset, GPUs released":    {fold(sick, released), true},
		"GPU to be reset, released no more": {fold(sick, released, sick), true},
	} {
		raw, _, err := withTaint(nil, c.verdict)
		if err != nil || len(raw) != 1 {
			t.Fatalf("%s: taints %s, %v", name, raw, err)
		}
		var taint corev1.Taint
		if err := json.Unmarshal(raw[0], &taint); err != nil || taint.Key != v1alpha1.TaintUnhealthy {
			t.Fatalf("%s: %s, %v", name, raw[0], err)
		}
		if _, away := corev1helpers.FindMatchingUntoleratedTaint(
			klog.Background(),
			[]corev1.Taint{taint},
			operators,
			keepsAway,
			false,
		); away == c.come {
			t.Errorf("%s: %s keeps the operator's pods away: %v", name, raw[0], away)
		}
	}
	if c := conditionOf(fold(sick, released), metav1.Now()); c.Reason != v1alpha1.CauseGPUsReleased || c.Status != "False" ||
		!strings.Contains(c.Message, "reset of the GPU; GPUs released: a word") {
		t.Errorf("%+v", c)
	}
	if h := Health(fold(sick, released)); !h.Soft || h.Released != "a word" || h.Cause != string(nodehealth.GPUNeedsReset) {
		t.Errorf("%+v", h)
	}
}
