package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/nodehealth/budget"
)

// world is an API server with nodes n1, n2, …, one lease each, and one controller.
type world struct {
	t      *testing.T
	client client.Client
	c      *Controller
	events *events.FakeRecorder
	now    time.Time
	// agents has when each agent last reported.
	agents map[string]time.Time
	dryRun bool

	// mu guards what follows: decisions are written to several nodes concurrently.
	mu      sync.Mutex
	patches []string
	// called before a patch is carried out
	before func(node string)
}

func (w *world) patch(node string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patches = append(w.patches, node+" "+string(data))
	w.before(node)
}

func (w *world) LastContact(uid string) (time.Time, bool) {
	at, ok := w.agents[uid]
	return at, ok
}

func newWorld(t *testing.T, nodes int) *world {
	t.Helper()
	w := &world{
		t:      t,
		events: events.NewFakeRecorder(1000),
		now:    time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		agents: map[string]time.Time{},
		before: func(string) {},
	}
	b := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			data, err := patch.Data(obj)
			if err != nil {
				return err
			}
			w.patch(obj.GetName(), data)
			return c.Patch(ctx, obj, patch, opts...)
		}})
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		b.WithObjects(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}}},
			Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
		}, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "team",
				Name:      "p" + name,
				UID:       types.UID("pod-" + name),
				Labels:    map[string]string{v1alpha1.LabelGang: "llama"},
			},
			Spec:   corev1.PodSpec{NodeName: name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	w.client = b.Build()
	w.lead()
	for i := range nodes {
		w.c.leases.OnAdd(lease(fmt.Sprintf("n%d", i+1), w.now), true)
	}
	return w
}

// lead starts a controller without state.
func (w *world) lead() {
	w.t.Helper()
	c, err := New(
		Options{
			Reader:   w.client,
			Writer:   w.client,
			Recorder: w.events,
			Contacts: w,
			Now:      func() time.Time { return w.now },
			Log:      logr.Discard(),
			Budget:   budget.Defaults(),
			DryRun:   w.dryRun,
		},
	)
	if err != nil {
		w.t.Fatal(err)
	}
	c.led = w.now
	w.c = c
}

func lease(node string, at time.Time) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(at)
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
}

func (w *world) renew(names ...string) {
	for _, n := range names {
		w.c.leases.OnUpdate(lease(n, w.now.Add(-10*time.Second)), lease(n, w.now))
	}
}

func (w *world) decide() {
	w.t.Helper()
	if err := w.c.decide(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{}
	if err := w.client.Get(context.Background(), types.NamespacedName{Name: name}, node); err != nil {
		w.t.Fatal(err)
	}
	return node
}

func (w *world) verdict(name string, action v1alpha1.NodeAction, cause string) {
	w.t.Helper()
	text, err := json.Marshal(v1alpha1.NodeHealth{Action: action, Cause: cause, Since: metav1.NewMicroTime(w.now)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.annotate(name, v1alpha1.AnnotationHealth, string(text))
}

func (w *world) annotate(name, key, value string) {
	w.t.Helper()
	node := w.node(name)
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[key] = value
	if err := w.client.Update(context.Background(), node); err != nil {
		w.t.Fatal(err)
	}
}

// stands returns the decision on a Node. stands checks that annotation and taint agree with it and that the taint of another writer is
// unchanged.
func (w *world) stands(name string) string {
	w.t.Helper()
	node := w.node(name)
	var taints []string
	for _, t := range node.Spec.Taints {
		taints = append(taints, t.Key+"="+t.Value+":"+string(t.Effect))
	}
	if !slices.Contains(taints, "example.com/theirs=:NoExecute") {
		w.t.Errorf("%s lost its owner's taint: %v", name, taints)
	}
	o := v1alpha1.NodeOutage{}
	if text, ok := node.Annotations[v1alpha1.AnnotationOutage]; ok {
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			w.t.Fatal(err)
		}
	}
	ours := slices.DeleteFunc(taints, func(s string) bool { return !strings.HasPrefix(s, v1alpha1.TaintOutage) })
	if want := v1alpha1.TaintOutage + "=" + o.Cause + ":NoSchedule"; (o.Decision != "") != slices.Equal(ours, []string{want}) {
		w.t.Errorf("%s: decision %q with taints %v", name, o.Decision, ours)
	}
	return strings.TrimSpace(string(o.Decision) + " " + o.Reason)
}

func (w *world) expect(want map[string]string) {
	w.t.Helper()
	for name, s := range want {
		if got := w.stands(name); got != s {
			w.t.Errorf("%s: %q stands, want %q", name, got, s)
		}
	}
}

func (w *world) seenEvents() (all []string) {
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func TestVerdictToOutageAndBack(t *testing.T) {
	w := newWorld(t, 6)
	w.decide()
	if len(w.patches) > 0 {
		t.Errorf("wrote on nodes that are well: %v", w.patches)
	}
	w.verdict("n1", v1alpha1.ActionEvict, "FellOffBus")
	w.verdict("n2", v1alpha1.ActionEvict, "FellOffBus")
	w.verdict("n3", v1alpha1.ActionExclude, "TooHot")
	w.decide()
	w.expect(map[string]string{"n1": "Evict", "n2": "Hold ClusterBudget", "n3": "Exclude", "n4": ""})
	if len(w.patches) != 3 {
		t.Errorf("%d patches for 3 nodes: %v", len(w.patches), w.patches)
	}
	if e := w.seenEvents(); len(e) != 3 || !strings.Contains(strings.Join(e, "\n"), "Warning NodeGivenUp FellOffBus") {
		t.Errorf("events: %q", e)
	}
	w.decide()
	if len(w.patches) != 3 {
		t.Errorf("wrote again without a change: %v", w.patches[3:])
	}
	w.lead()
	w.verdict("n1", v1alpha1.ActionNone, "")
	w.decide()
	w.expect(map[string]string{"n1": "", "n2": "Evict", "n3": "Exclude"})
}

// TestPodsThatRepairMayCome: the taint of the decision admits the pods that the taint of the daemon's verdict admits, and changes with it.
func TestPodsThatRepairMayCome(t *testing.T) {
	w := newWorld(t, 6)
	effect := func() corev1.TaintEffect {
		for _, taint := range w.node("n1").Spec.Taints {
			if isOutage(taint) {
				return taint.Effect
			}
		}
		return ""
	}
	for _, step := range []struct {
		soft bool
		want corev1.TaintEffect
	}{{false, corev1.TaintEffectNoSchedule}, {true, corev1.TaintEffectPreferNoSchedule}, {false, corev1.TaintEffectNoSchedule}} {
		text, err := json.Marshal(
			v1alpha1.NodeHealth{Action: v1alpha1.ActionEvict, Cause: "GPUNeedsReset", Since: metav1.NewMicroTime(w.now), Soft: step.soft},
		)
		if err != nil {
			t.Fatal(err)
		}
		w.annotate("n1", v1alpha1.AnnotationHealth, string(text))
		w.decide()
		w.decide()
		if got := effect(); got != step.want {
			t.Errorf("soft %v: %q, not %q", step.soft, got, step.want)
		}
	}
	node := w.node("n1")
	node.Annotations[v1alpha1.AnnotationHealth] = `{"action":"Exclude","cause":"DriverGone","since":null,"soft":true}`
	for o, want := range map[budget.Outage]corev1.TaintEffect{
		{Outcome: budget.Evict, Cause: budget.CauseUnreachable, Dead: true}: corev1.TaintEffectNoSchedule,
		{Outcome: budget.Exclude, Cause: "DriverGone"}:                      corev1.TaintEffectPreferNoSchedule,
		{Outcome: budget.Evict, Cause: "DriverGone", Requested: true}:       corev1.TaintEffectNoSchedule,
	} {
		if got := outageEffect(node, o); got != want {
			t.Errorf("%+v: %s, not %s", o, got, want)
		}
	}
}

func TestTakesBackWhatOthersChanged(t *testing.T) {
	w := newWorld(t, 6)
	w.verdict("n1", v1alpha1.ActionEvict, "FellOffBus")
	w.decide()
	w.decide()
	node := w.node("n1")
	node.Spec.Taints = node.Spec.Taints[:1]
	if err := w.client.Update(context.Background(), node); err != nil {
		t.Fatal(err)
	}
	w.annotate("n4", v1alpha1.AnnotationOutage, "nonsense")
	w.seenEvents()
	w.decide()
	w.expect(map[string]string{"n1": "Evict", "n4": ""})
	if e := w.seenEvents(); len(e) > 0 {
		t.Errorf("told anew what was decided long ago: %q", e)
	}
}

// TestConflict: a taint that another client adds between read and write stays.
func TestConflict(t *testing.T) {
	w := newWorld(t, 6)
	w.verdict("n1", v1alpha1.ActionEvict, "FellOffBus")
	first := true
	w.before = func(string) {
		if !first {
			return
		}
		first = false
		node := w.node("n1")
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "example.com/late", Effect: corev1.TaintEffectNoSchedule})
		if err := w.client.Update(context.Background(), node); err != nil {
			t.Error(err)
		}
	}
	w.decide()
	w.expect(map[string]string{"n1": "Evict"})
	if taints := w.node("n1").Spec.Taints; len(taints) != 3 {
		t.Errorf("taints are %v, want both of others and ours", taints)
	}
}

// TestCacheBehind: a cache that does not show the last write yet must not lead to another decision.
func TestCacheBehind(t *testing.T) {
	w := newWorld(t, 6)
	w.now = w.now.Add(time.Minute)
	w.renew("n1", "n2", "n3", "n4", "n5", "n6")
	w.verdict("n2", v1alpha1.ActionEvict, "FellOffBus")
	old := frozen{w.client, map[string]*corev1.Node{"n2": w.node("n2")}}
	w.c.Reader = old
	w.decide()
	w.now = w.now.Add(-time.Second) // n1 is older, and would come first
	w.verdict("n1", v1alpha1.ActionEvict, "FellOffBus")
	w.now = w.now.Add(time.Second)
	w.decide()
	w.expect(map[string]string{"n2": "Evict", "n1": "Hold ClusterBudget"})
	w.c.Reader = w.client
	w.decide()
	w.expect(map[string]string{"n2": "Evict", "n1": "Hold ClusterBudget"})
	if len(w.patches) != 2 {
		t.Errorf("%d patches for 2 nodes: %v", len(w.patches), w.patches)
	}
}

// frozen returns some Nodes in an earlier state.
type frozen struct {
	client.Reader
	old map[string]*corev1.Node
}

func (f frozen) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := f.Reader.List(ctx, list, opts...); err != nil {
		return err
	}
	if nodes, ok := list.(*corev1.NodeList); ok {
		for i := range nodes.Items {
			if old := f.old[nodes.Items[i].Name]; old != nil {
				nodes.Items[i] = *old
			}
		}
	}
	return nil
}

func TestDryRunTellsAndWritesNothing(t *testing.T) {
	w := newWorld(t, 6)
	w.dryRun = true
	w.lead()
	w.verdict("n1", v1alpha1.ActionEvict, "FellOffBus")
	w.verdict("n2", v1alpha1.ActionEvict, "FellOffBus")
	w.decide()
	w.decide()
	w.expect(map[string]string{"n1": "", "n2": ""})
	if e := w.seenEvents(); len(e) != 2 || !strings.Contains(e[0], "dry run") {
		t.Errorf("events: %q", e)
	}
	w.verdict("n1", v1alpha1.ActionNone, "")
	w.decide()
	if e := w.seenEvents(); len(e) != 2 || len(w.patches) > 0 {
		t.Errorf("after healing, events: %q, patches: %v", e, w.patches)
	}
}

func TestSilentNode(t *testing.T) {
	w := newWorld(t, 6)
	all := []string{"n1", "n2", "n3", "n4", "n5", "n6"}
	for i := range 60 {
		w.now = w.now.Add(time.Second)
		if i%5 == 0 {
			w.renew(all[1:]...)
		}
		for _, n := range all {
			w.agents["pod-"+n] = w.now
		}
		if i >= 30 {
			delete(w.agents, "pod-n1") // the coordinator drops a pod only with its gang; here the pod stands for one that never reported
		}
		w.decide()
	}
	w.expect(map[string]string{"n1": "Evict", "n2": ""})
	var o v1alpha1.NodeOutage
	if err := json.Unmarshal([]byte(w.node("n1").Annotations[v1alpha1.AnnotationOutage]), &o); err != nil || !o.Dead ||
		o.Cause != v1alpha1.CauseNodeUnreachable {
		t.Errorf("outage %+v, %v", o, err)
	}
	w.renew("n1")
	w.now = w.now.Add(time.Second)
	w.renew("n1")
	w.decide()
	w.expect(map[string]string{"n1": ""})
}

// TestALongerLease: the decision uses the duration in the lease, which the cache provides.
func TestALongerLease(t *testing.T) {
	w := newWorld(t, 6)
	long := func(at time.Time) *coordinationv1.Lease {
		l := lease("n1", at)
		l.Spec.LeaseDurationSeconds = ptr.To[int32](120)
		slim, err := SlimLease(l)
		if err != nil {
			t.Fatal(err)
		}
		return slim.(*coordinationv1.Lease)
	}
	w.c.leases.OnUpdate(long(w.now.Add(-30*time.Second)), long(w.now))
	w.agents["pod-n1"] = w.now
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{30 * time.Second, ""}, {5 * time.Second, ""}, {2 * time.Second, "Evict"}} {
		w.now = w.now.Add(step.after)
		w.renew("n2", "n3", "n4", "n5", "n6")
		w.decide()
		w.expect(map[string]string{"n1": step.want, "n2": ""})
	}
}

// TestAgentOfAnEarlierLeader: a pod that ran before this leader began may have an agent. That agent gets time to report.
func TestAgentOfAnEarlierLeader(t *testing.T) {
	w := newWorld(t, 2)
	pod := &corev1.Pod{}
	if err := w.client.Get(context.Background(), types.NamespacedName{Namespace: "team", Name: "pn1"}, pod); err != nil {
		t.Fatal(err)
	}
	started := metav1.NewTime(w.now.Add(-time.Hour))
	pod.Status.StartTime = &started
	if err := w.client.Status().Update(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	loads, err := w.c.nodeLoads(context.Background())
	if err != nil || loads["n1"].agents != 1 || loads["n2"].agents != 0 || !loads["n1"].lastContact.IsZero() {
		t.Errorf("crews %+v, %v", loads, err)
	}
	w.agents["pod-n2"] = w.now
	if loads, err = w.c.nodeLoads(context.Background()); err != nil || loads["n2"].agents != 1 || !loads["n2"].lastContact.Equal(w.now) {
		t.Errorf("crews %+v, %v", loads, err)
	}
}

func TestUnreadableVerdictKeepsWhatStands(t *testing.T) {
	w := newWorld(t, 6)
	w.verdict("n1", v1alpha1.ActionEvict, "FellOffBus")
	w.decide()
	w.annotate("n1", v1alpha1.AnnotationHealth, "{")
	w.annotate("n2", v1alpha1.AnnotationHealth, `{"action":"Explode"}`)
	w.decide()
	w.expect(map[string]string{"n1": "Evict", "n2": ""})
	if len(w.c.notified) != 2 {
		t.Errorf("told of %v", w.c.notified)
	}
}
