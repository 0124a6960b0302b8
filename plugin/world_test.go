package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/claims"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/planner"
	"holdfast.dev/holdfast/plugin/plugintest"
)

const gpu = plugintest.GPU

var (
	node      = plugintest.Node
	labelled  = plugintest.Labelled
	pod       = plugintest.Pod
	memberPod = plugintest.Member
	gangOf    = plugintest.Gang
	on        = plugintest.On
	asking    = plugintest.Asking
	created   = plugintest.Created
	ownedBy   = plugintest.OwnedBy
	key       = plugintest.Key
	at        = plugintest.At
)

// newCache returns a Cache of gangs whose terms come only from their pods.
func newCache() *gangcache.Cache {
	return gangcache.New(gangcache.Config{
		Terms: func(_ types.NamespacedName, pod *v1.Pod) (gangcache.Terms, error) { return gangcache.OwnTerms(pod) },
		Role:  planner.RoleOf, AwaitsClaims: claims.Awaited,
	})
}

// world is a real scheduler with the plugin, over a fake API server.
type world struct {
	t      testing.TB
	ctx    context.Context
	client *fake.Clientset
	// eventClient writes the deferred events.
	eventClient *fake.Clientset
	plugin      *Plugin
	// instances is already driven by the world, unless extras disable that.
	instances *Instances
	sched     *scheduler.Scheduler
	// stop ends the scheduler and waits for it.
	stop func()

	mu sync.Mutex
	// binds lists "pod node" in the order of the API calls. events has messages by pod. placements has the applied statuses by gang.
	// Guarded by mu.
	binds      []string
	events     map[string][]string
	placements map[string][]v1alpha1.PlacementStatus
	conditions map[string]int
	// refuseBind makes the binding of a pod fail that many times.
	refuseBind map[string]int
	// evicted lists the evicted pods.
	evicted []string
	// onBind is called before a pod is bound.
	onBind func(pod, node string)
}

// extras change a world before it starts.
type extras struct {
	// plugins are additional plugins, enabled at all extension points.
	plugins map[string]frameworkruntime.PluginFactory
	// follower: the scheduler's informers run, but it does not lead until lead is called.
	follower bool
	// terms, if set, replaces the terms of gangs.
	terms func(types.NamespacedName, *v1.Pod) (gangcache.Terms, error)
	// before is called before the scheduler starts.
	before func(*world)
}

func newWorld(t testing.TB, x extras, objects ...runtime.Object) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{
		t:           t,
		ctx:         ctx,
		client:      fake.NewClientset(objects...),
		eventClient: fake.NewClientset(),
		events:      map[string][]string{},
		placements:  map[string][]v1alpha1.PlacementStatus{},
		conditions:  map[string]int{},
		refuseBind:  map[string]int{},
	}
	w.client.PrependReactor("create", "pods", w.bind)
	w.client.PrependReactor("create", "events", w.event)
	w.eventClient.PrependReactor("create", "events", w.event)
	w.client.PrependReactor("patch", "pods", w.condition)
	if x.before != nil {
		x.before(w)
	}
	w.start(ctx, cancel, x)
	return w
}

// start runs a scheduler on the world's API server, in place of an earlier one.
func (w *world) start(ctx context.Context, cancel context.CancelFunc, x extras) {
	w.t.Helper()
	gangs := w.gangs()
	factory := scheduler.NewInformerFactory(w.client, 0, nil)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: w.client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		w.t.Fatal(err)
	}
	instances := newInstances(func(fwk.Handle) (clients, error) { return clients{gangs, w.eventClient.EventsV1()}, nil })
	instances.terms = x.terms
	registry := frameworkruntime.Registry{Name: instances.New, GateName: instances.NewGate}
	maps.Copy(registry, x.plugins)
	sched, err := scheduler.New(ctx, w.client, factory, nil, profile.NewRecorderFactory(broadcaster),
		scheduler.WithProfiles(testProfile(w.t, x)), scheduler.WithFrameworkOutOfTreeRegistry(registry), scheduler.WithPodMaxBackoffSeconds(1))
	if err != nil {
		w.t.Fatal(err)
	}
	instances.Start(ctx, sched)
	w.plugin, w.instances, w.sched = instances.plugins[v1alpha1.SchedulerName], instances, sched
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := sched.WaitForHandlersSync(ctx); err != nil {
		w.t.Fatal(err)
	}
	eventually.Holds(w.t, "a watch after each list", w.watches)
	done := make(chan struct{})
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if !x.follower {
				<-done
			}
			broadcaster.Shutdown()
		})
	}
	w.t.Cleanup(w.stop)
	if !x.follower {
		go func() { sched.Run(ctx); close(done) }()
	}
}

// watches reports whether each informer's watch has begun: the fake API server keeps no changes for a watch that begins after them.
func (w *world) watches() (begun bool, seen any) {
	missing := map[string]int{}
	for _, a := range w.client.Actions() {
		switch resource := a.GetResource().Resource; a.GetVerb() {
		case "list":
			missing[resource]++
		case "watch":
			missing[resource]--
		}
	}
	maps.DeleteFunc(missing, func(_ string, n int) bool { return n <= 0 })
	return len(missing) == 0, missing
}

// testProfile returns the profile in the manifests.
func testProfile(t testing.TB, x extras) schedulerapi.KubeSchedulerProfile {
	t.Helper()
	text, err := os.ReadFile("../manifests/scheduler/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg, ok := obj.(*schedulerapi.KubeSchedulerConfiguration)
	if !ok || len(cfg.Profiles) != 1 || cfg.Profiles[0].SchedulerName != v1alpha1.SchedulerName {
		t.Fatalf("the shipped configuration is %T with profiles %+v", obj, cfg.Profiles)
	}
	p := cfg.Profiles[0]
	for name := range x.plugins {
		p.Plugins.MultiPoint.Enabled = append(p.Plugins.MultiPoint.Enabled, schedulerapi.Plugin{Name: name})
	}
	return p
}

// gangs returns a client that has a Gang of any name and records applied objects.
func (w *world) gangs() *dynamicfake.FakeDynamicClient {
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(
		runtime.NewScheme(),
		map[schema.GroupVersionResource]string{v1alpha1.GroupVersion.WithResource("gangs"): "GangList"},
	)
	c.PrependReactor("get", "gangs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		get, ok := a.(clienttesting.GetAction)
		if !ok {
			return false, nil, nil
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Gang"))
		u.SetNamespace(get.GetNamespace())
		u.SetName(get.GetName())
		return true, u, nil
	})
	c.PrependReactor("patch", "gangs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := a.(clienttesting.PatchAction)
		if !ok || patch.GetSubresource() != "status" || patch.GetPatchType() != types.ApplyPatchType {
			return true, nil, fmt.Errorf("unexpected patch %v", a)
		}
		var g v1alpha1.Gang
		if err := json.Unmarshal(patch.GetPatch(), &g); err != nil {
			return true, nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.placements[patch.GetName()] = append(w.placements[patch.GetName()], *g.Status.Placement)
		return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
	})
	return c
}

// bind does what the API server does with a binding. The fake client runs one reaction at a time, so a binding is one step.
func (w *world) bind(a clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := a.(clienttesting.CreateAction)
	if !ok || create.GetSubresource() != "binding" {
		return false, nil, nil
	}
	b, ok := create.GetObject().(*v1.Binding)
	if !ok {
		return true, nil, fmt.Errorf("unexpected object %T", create.GetObject())
	}
	w.mu.Lock()
	hook := w.onBind
	if w.refuseBind[b.Name] > 0 {
		w.refuseBind[b.Name]--
		w.mu.Unlock()
		return true, nil, fmt.Errorf("binding of %s is refused by the test", b.Name)
	}
	w.mu.Unlock()
	if hook != nil {
		hook(b.Name, b.Target.Name)
	}
	pod, err := w.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), b.Namespace, b.Name)
	if err != nil {
		return true, nil, err
	}
	bound := pod.(*v1.Pod).DeepCopy()
	if bound.UID != b.UID || bound.Spec.NodeName != "" {
		return true, nil, apierrors.NewConflict(v1.Resource("pods"), b.Name, fmt.Errorf("uid %s on node %q", bound.UID, bound.Spec.NodeName))
	}
	bound.Spec.NodeName = b.Target.Name
	for k, v := range b.Annotations { // as the API server does
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, k, v)
	}
	w.mu.Lock()
	w.binds = append(w.binds, b.Name+" "+b.Target.Name)
	w.mu.Unlock()
	return true, b, w.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), bound, b.Namespace)
}

func (w *world) event(a clienttesting.Action) (bool, runtime.Object, error) {
	if create, ok := a.(clienttesting.CreateAction); ok {
		if e, ok := create.GetObject().(*eventsv1.Event); ok {
			w.mu.Lock()
			w.events[e.Regarding.Name] = append(w.events[e.Regarding.Name], e.Reason+": "+e.Note)
			w.mu.Unlock()
		}
	}
	return false, nil, nil
}

func (w *world) condition(a clienttesting.Action) (bool, runtime.Object, error) {
	if patch, ok := a.(clienttesting.PatchAction); ok && patch.GetSubresource() == "status" {
		w.mu.Lock()
		w.conditions[patch.GetName()]++
		w.mu.Unlock()
	}
	return false, nil, nil
}

func (w *world) create(objects ...runtime.Object) {
	w.t.Helper()
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *v1.Pod:
			_, err = w.client.CoreV1().Pods(o.Namespace).Create(w.ctx, o, metav1.CreateOptions{})
		case *v1.Node:
			_, err = w.client.CoreV1().Nodes().Create(w.ctx, o, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("unexpected %T", o)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) remove(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, name, metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// where returns the node of a pod.
func (w *world) where(name string) string {
	p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		return "gone"
	}
	return p.Spec.NodeName
}

// until waits until a condition holds.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	eventually.Holds(w.t, what, func() (bool, any) { return ok(), func() string { w.dump(); return "see above" } })
}

func (w *world) dump() {
	for key := range w.gangNames() {
		w.t.Logf("gang %s: open %v", key, w.plugin.gangs.IsOpen(key))
		for _, m := range w.plugin.gangs.List(key).Members {
			w.t.Logf("  %s: state %d node %q", m.Pod.UID, m.State, m.Node)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Logf("binds %v\nevents %v\nplacements %+v", w.binds, w.events, w.placements)
}

// snapshot updates the snapshot of a follower as its scheduling goroutine would.
func (w *world) snapshot() []fwk.NodeInfo {
	w.t.Helper()
	view, ok := w.plugin.handle.SnapshotSharedLister().(*cache.Snapshot)
	if !ok {
		w.t.Fatalf("the snapshot is a %T", w.plugin.handle.SnapshotSharedLister())
	}
	if err := w.sched.Cache.UpdateSnapshot(klog.Background(), view); err != nil {
		w.t.Fatal(err)
	}
	all, err := view.NodeInfos().List()
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// gangNames returns the gangs of all pods that exist.
func (w *world) gangNames() map[types.NamespacedName]bool {
	names := map[types.NamespacedName]bool{}
	if all, err := w.client.CoreV1().Pods(v1.NamespaceAll).List(w.ctx, metav1.ListOptions{}); err == nil {
		for i := range all.Items {
			if key, ok := membership.GroupOf(&all.Items[i]); ok {
				names[key] = true
			}
		}
	}
	return names
}

func (w *world) boundTo(want map[string]string) func() bool {
	return func() bool {
		for pod, node := range want {
			if at := w.where(pod); at == "" || at == "gone" || (node != "*" && at != node) {
				return false
			}
		}
		return true
	}
}

// placement returns the newest placement status of a gang.
func (w *world) placement(name string) v1alpha1.PlacementStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.placements[name]
	if len(all) == 0 {
		return v1alpha1.PlacementStatus{}
	}
	return all[len(all)-1]
}

func (w *world) says(gangName, text string) func() bool {
	return func() bool { p := w.placement(gangName); return strings.Contains(p.Message, text) }
}

// failures lists the FailedScheduling events of pods.
func (w *world) failures(pods ...string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, p := range pods {
		for _, e := range w.events[p] {
			if strings.HasPrefix(e, "FailedScheduling") {
				all = append(all, p+" "+e)
			}
		}
	}
	slices.Sort(all)
	return all
}

// attempted waits until the scheduler has tried a pod that fits nowhere, so that everything queued before it has been tried too. By this a
// test observes without sleeping that nothing happens.
func (w *world) attempted() {
	w.t.Helper()
	probe := pod(fmt.Sprintf("probe-%d", time.Now().UnixNano()), 1000)
	w.create(probe)
	w.until("the probe to be refused", func() bool { return len(w.failures(probe.Name)) > 0 })
	w.remove(probe.Name)
}
