package external

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/gangcache"
	"holdfast.dev/holdfast/plugin/plugintest"
)

// shelf is a Book over a fake API server that serves the selected resources.
type shelf struct {
	t       *testing.T
	ctx     context.Context
	book    *Book
	kube    *fake.Clientset
	live    cache.Indexer // the scheduler's informer
	dynamic *dynamicfake.FakeDynamicClient

	mu      sync.Mutex
	changes []string // guarded by mu
}

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, ctx: t.Context(), kube: fake.NewClientset(),
		live: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
	kinds := map[schema.GroupVersionResource]string{}
	for _, a := range NewBook(nil, nil).apis {
		kinds[a.gvr] = "PodGroupList"
	}
	kinds[hyperNodes] = "HyperNodeList"
	s.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	s.book = NewBook(s.dynamic, s.kube.Discovery())
	note := func(what string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, what)
	}
	s.book.Subscribe(func(key types.NamespacedName) { note(key.String()) }, func(resource string) { note("all " + resource) })
	return s
}

// serve sets which resources of an API are served, and makes the Book query discovery.
func (s *shelf) serve(gv schema.GroupVersion, resources ...string) {
	list := &metav1.APIResourceList{GroupVersion: gv.String()}
	for _, r := range resources {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: r})
	}
	discovery, ok := s.kube.Discovery().(*fakediscovery.FakeDiscovery)
	if !ok {
		s.t.Fatal("this is no fake")
	}
	discovery.Resources = nil
	if len(resources) > 0 {
		discovery.Resources = []*metav1.APIResourceList{list}
	}
	s.book.look(s.ctx)
}

// add adds a pod to the API server, and to the scheduler's informer unless it has ended.
func (s *shelf) add(pod *corev1.Pod) {
	s.t.Helper()
	err := s.kube.Tracker().Add(pod)
	if !membership.Ended(pod) {
		err = errors.Join(err, s.live.Add(pod))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// writer returns a Writer for the groups of a scheduler.
func (s *shelf) writer(scheduler string, emit func(*corev1.ObjectReference, string, string)) *Writer {
	version := "41"
	s.kube.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		// the caches of other API servers may be behind the informer: their older states lack the pods that ended since
		list, ok := a.(clienttesting.ListActionImpl)
		return ok && list.ListOptions.ResourceVersion != version, &corev1.PodList{}, nil
	})
	return NewWriter(s.book, corelisters.NewPodLister(s.live), func() string { return version }, s.kube, scheduler, emit)
}

func (s *shelf) until(what string, ok func() bool) {
	s.t.Helper()
	eventually.Holds(s.t, what, func() (bool, any) {
		s.mu.Lock()
		changes := slices.Clone(s.changes)
		s.mu.Unlock()
		return ok(), changes
	})
}

func (s *shelf) heard(what string) func() bool {
	return func() bool { return s.times(what) > 0 }
}

// times returns how often a change was reported to subscribers.
func (s *shelf) times(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c == what {
			n++
		}
	}
	return n
}

func (s *shelf) create(gv schema.GroupVersion, resource string, object map[string]any) {
	s.t.Helper()
	u := &unstructured.Unstructured{Object: object}
	if _, err := s.dynamic.Resource(gv.WithResource(resource)).Namespace(u.GetNamespace()).Create(
		s.ctx,
		u,
		metav1.CreateOptions{},
	); err != nil {
		s.t.Fatal(err)
	}
}

func podGroup(name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": coscheduling.SchemeGroupVersion.String(), "kind": "PodGroup",
		"metadata": map[string]any{"namespace": "ns", "name": name, "uid": name, "resourceVersion": "7"}, "spec": spec}
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: membership.Coscheduling + "/" + name}
}

func pod(name string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{coscheduling.PodGroupLabel: "g"}},
		Spec:       corev1.PodSpec{SchedulerName: v1alpha1.SchedulerName}, Status: corev1.PodStatus{Phase: phase}}
}

// An API that becomes served is watched, and is no longer watched when it disappears. An API that is not served is not queried.
func TestAPIsComeAndGo(t *testing.T) {
	s := newShelf(t)
	if _, err := s.book.Terms(key("g"), nil); !errors.Is(err, gangcache.ErrTermsUnknown) {
		t.Errorf("before anything is known: %v", err)
	}
	s.serve(coscheduling.SchemeGroupVersion)
	if _, err := s.book.Terms(key("g"), nil); err == nil || !strings.Contains(err.Error(), "does not serve") {
		t.Errorf("not served: %v", err)
	}
	if !s.heard("all " + membership.Coscheduling)() {
		t.Error("nobody heard that it is not served")
	}
	if actions := s.dynamic.Actions(); len(actions) != 0 {
		t.Errorf("asked of an API that is not served: %v", actions)
	}
	s.create(coscheduling.SchemeGroupVersion, "podgroups", podGroup("g", map[string]any{"minMember": int64(3)}))
	s.create(coscheduling.SchemeGroupVersion, "podgroups", podGroup("odd", map[string]any{"minMember": "many"}))
	s.create(coscheduling.SchemeGroupVersion, "podgroups", podGroup("huge", map[string]any{"minMember": int64(math.MaxInt32)}))
	s.serve(coscheduling.SchemeGroupVersion, "podgroups", "podgroups/status")
	s.until("the group to be read", func() bool { got, err := s.book.Terms(key("g"), nil); return err == nil && got.Min == 3 })
	s.until("its change to be heard", s.heard(key("g").String()))
	if _, err := s.book.Terms(key("none"), nil); err == nil || !strings.Contains(err.Error(), "create it") {
		t.Errorf("no such group: %v", err)
	}
	if _, err := s.book.Terms(key("odd"), nil); err == nil || !strings.Contains(err.Error(), "cannot be decoded") {
		t.Errorf("one of another form: %v", err)
	}
	if _, err := s.book.Terms(key("huge"), nil); err == nil || !strings.Contains(err.Error(), "the limit is 5000") {
		t.Errorf("one of more pods than a gang can have: %v", err)
	}
	own := types.NamespacedName{Namespace: "ns", Name: "own"}
	for size, good := range map[string]bool{"5000": true, "5001": false, "2147483647": false} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationGangSize: size}}}
		if _, err := s.book.Terms(own, p); (err == nil) != good {
			t.Errorf("a gang of ours of %s: %v", size, err)
		}
	}
	s.serve(coscheduling.SchemeGroupVersion)
	if _, err := s.book.Terms(key("g"), nil); err == nil || !strings.Contains(err.Error(), "does not serve") {
		t.Errorf("served no more: %v", err)
	}
}

func TestHyperNodesAreRead(t *testing.T) {
	s := newShelf(t)
	if s.book.Tiers(klog.Background()) != nil {
		t.Error("there are tiers of nothing")
	}
	s.create(hyperNodes.GroupVersion(), "hypernodes", map[string]any{"apiVersion": hyperNodes.GroupVersion().String(), "kind": "HyperNode",
		"metadata": map[string]any{
			"name": "leaf",
		}, "spec": map[string]any{"tier": int64(1), "members": []any{map[string]any{"type": "Node", "selector": map[string]any{"exactMatch": map[string]any{"name": "n1"}}}}}})
	s.serve(hyperNodes.GroupVersion(), "hypernodes")
	s.until("the tier to be seen", func() bool { return len(s.book.Tiers(klog.Background()).Levels()) == 1 })
	// each change makes Tiers read the HyperNodes again
	s.until("the HyperNode to be told, and that all are known", func() bool { return s.times("all hypernodes.topology.volcano.sh") >= 2 })
	if tiers := s.book.Tiers(klog.Background()); tiers != s.book.Tiers(klog.Background()) {
		t.Error("the tiers are read anew though nothing changed")
	}
}

// A status that is already right is not written again. The groups of other schedulers are not written.
func TestStatusIsWrittenOnce(t *testing.T) {
	s := newShelf(t)
	var told []string
	w := s.writer(v1alpha1.SchedulerName, func(o *corev1.ObjectReference, reason, _ string) { told = append(told, o.Name+" "+reason) })
	s.create(coscheduling.SchemeGroupVersion, "podgroups", podGroup("g", map[string]any{"minMember": int64(1)}))
	s.serve(coscheduling.SchemeGroupVersion, "podgroups", "podgroups/status")
	s.until("the group to be read", func() bool { _, err := s.book.Terms(key("g"), nil); return err == nil })
	patches := func() (n int) {
		for _, a := range s.dynamic.Actions() {
			if a.GetVerb() == "patch" && a.GetSubresource() == "status" {
				n++
			}
		}
		return n
	}
	write := func(answer *v1alpha1.PlacementStatus, member bool) {
		t.Helper()
		if err := w.Write(s.ctx, key("g"), answer, member); err != nil {
			t.Fatal(err)
		}
	}
	other := pod("other", corev1.PodRunning)
	other.Spec.SchedulerName = "another"
	s.add(other)
	if write(nil, false); patches() != 0 {
		t.Error("the group of another scheduler was written")
	}
	s.add(pod("mine", corev1.PodRunning))
	s.add(pod("ended", corev1.PodSucceeded))
	s.add(pod("ending", corev1.PodSucceeded))
	if err := s.live.Add(pod("ending", corev1.PodRunning)); err != nil { // the informer is behind
		t.Fatal(err)
	}
	no := &v1alpha1.PlacementStatus{Reason: v1alpha1.ReasonInsufficientNodes, Message: "no room"}
	write(no, true)
	s.until("the status to be seen", func() bool {
		o, _, err := s.book.get(key("g"))
		pg, ok := o.(*coscheduling.PodGroup)
		return err == nil && ok && pg.Status.Phase == coscheduling.PodGroupFinished && pg.Status.Running == 2 && pg.Status.Succeeded == 2
	})
	for range 3 {
		write(no, true)
	}
	if n := patches(); n != 1 {
		t.Errorf("written %d times", n)
	}
	if len(told) != 1 || told[0] != "g "+v1alpha1.ReasonInsufficientNodes {
		t.Errorf("told %q", told)
	}
	if err := s.dynamic.Resource(coscheduling.SchemeGroupVersion.WithResource("podgroups")).Namespace("ns").Delete(
		s.ctx,
		"g",
		metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	s.until("the group to be gone", func() bool { _, _, err := s.book.get(key("g")); return err != nil })
	if write(no, true); len(w.notified)+len(w.written) != 0 {
		t.Errorf("of a group that is gone it is remembered: %v, %v", w.notified, w.written)
	}
}

// Pods that succeeded under an earlier job of the same name do not count for the present job.
func TestOnlyPodsOfOneJobCountAsEnded(t *testing.T) {
	client := fake.NewClientset()
	for i, job := range []string{"earlier", "now", "now"} {
		p := plugintest.OwnedBy(job, plugintest.Member("x", i, 9, 0))
		p.Status.Phase = corev1.PodSucceeded
		if i == 2 {
			p.Labels[v1alpha1.LabelReplaced] = "true"
		}
		if err := client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	ended, err := Succeeded(t.Context(), client, plugintest.Key("x"), plugintest.OwnedBy("now", plugintest.Member("x", 4, 9, 0)))
	if err != nil || len(ended) != 1 || ended[0].Name != "x-1" {
		t.Errorf("ended %v, %v", ended, err)
	}
}

// In a group of another API all pods that succeeded count, also pods without an owner, as in Volcano.
func TestAllPodsOfAGroupCountAsEnded(t *testing.T) {
	client := fake.NewClientset()
	for i, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed, corev1.PodSucceeded} {
		p := plugintest.Pod([]string{"en-0", "en-1", "en-2"}[i], 1)
		p.Labels, p.Status.Phase = map[string]string{coscheduling.PodGroupLabel: "en"}, phase
		if i == 2 {
			p = plugintest.OwnedBy("job", p)
		}
		if err := client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	member := plugintest.Pod("en-3", 1)
	member.Labels = map[string]string{coscheduling.PodGroupLabel: "en"}
	ended, err := Succeeded(t.Context(), client, plugintest.Key("podgroups.scheduling.x-k8s.io/en"), member)
	if err != nil || len(ended) != 2 || ended[0].Name != "en-0" || ended[1].Name != "en-2" {
		t.Errorf("ended %v, %v", ended, err)
	}
}
