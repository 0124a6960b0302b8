// Package external reads the PodGroups of scheduler-plugins, of Volcano and of Kubernetes, and Volcano's HyperNodes. The package writes the
// status of PodGroups in the form that each of these APIs defines, and only when the status changes. The package watches an API only while
// the cluster serves that API. Pods of a PodGroup are not scheduled before the package has read the PodGroup.
package external

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	vctopology "volcano.sh/apis/pkg/apis/topology/v1alpha1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/plugin/gangcache"
)

// look is the interval at which discovery is queried for the served APIs.
const look = 10 * time.Second

// Book holds the groups and HyperNodes that were read.
type Book struct {
	client    dynamic.Interface
	discovery discovery.DiscoveryInterface
	apis      []*api
	// changed are called with a group that changed, allChanged with an API that became served or unserved, or with HyperNodes if those
	// changed. They are called without locks held.
	changed    []func(types.NamespacedName)
	allChanged []func(resource string)

	// mu is a leaf.
	mu sync.Mutex
	// stale: HyperNodes changed since tiers was computed. Guarded by mu, with tiers.
	stale bool
	tiers *Tiers
}

// api is one kind of object that may be watched.
type api struct {
	gvr schema.GroupVersionResource
	// object returns an empty object of the kind.
	object func() runtime.Object

	mu sync.Mutex
	// state and all below are guarded by mu.
	state state
	// subresource: the kind has the status subresource.
	subresource bool
	objects     cache.Indexer
	synced      func() bool
	stop        context.CancelFunc
}

type state int

const (
	// unasked: discovery was not queried yet.
	unasked state = iota
	absent
	served
)

// HyperNodes is the argument of callbacks when HyperNodes changed.
var HyperNodes = hyperNodes.GroupResource().String()

var hyperNodes = vctopology.SchemeGroupVersion.WithResource("hypernodes")

// NewBook returns an empty Book; Run fills it.
func NewBook(client dynamic.Interface, asking discovery.DiscoveryInterface) *Book {
	return &Book{client: client, discovery: asking, apis: []*api{
		{gvr: coscheduling.SchemeGroupVersion.WithResource("podgroups"), object: func() runtime.Object { return &coscheduling.PodGroup{} }},
		{gvr: vcscheduling.SchemeGroupVersion.WithResource("podgroups"), object: func() runtime.Object { return &vcscheduling.PodGroup{} }},
		{gvr: schedulingv1beta1.SchemeGroupVersion.WithResource("podgroups"), object: func() runtime.Object { return &schedulingv1beta1.PodGroup{} }},
		{gvr: hyperNodes, object: func() runtime.Object { return &vctopology.HyperNode{} }},
	}}
}

// Subscribe registers a callback for changes. It must be called before Run.
func (b *Book) Subscribe(one func(types.NamespacedName), all func(resource string)) {
	b.changed, b.allChanged = append(b.changed, one), append(b.allChanged, all)
}

// Run watches until the context ends.
func (b *Book) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, b.look, look)
}

// look queries which APIs are served, and starts or ends watching them.
func (b *Book) look(ctx context.Context) {
	for _, a := range b.apis {
		list, err := b.discovery.ServerResourcesForGroupVersion(a.gvr.GroupVersion().String())
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).V(2).Info("Querying whether an API is served failed; retrying", "api", a.gvr, "reason", err)
			continue
		}
		found, subresource := false, false
		if err == nil {
			for _, r := range list.APIResources {
				found = found || r.Name == a.gvr.Resource
				subresource = subresource || r.Name == a.gvr.Resource+"/status"
			}
		}
		b.serve(ctx, a, found, subresource)
	}
}

func (b *Book) serve(ctx context.Context, a *api, found, subresource bool) {
	a.mu.Lock()
	was := a.state
	a.subresource = subresource
	switch {
	case found && was != served:
		a.state = served
		b.watch(ctx, a)
	case !found && was != absent:
		a.state = absent
		if a.stop != nil {
			a.stop()
		}
		a.objects, a.synced, a.stop = nil, nil, nil
	}
	changed := a.state != was
	a.mu.Unlock()
	if changed && !found {
		klog.FromContext(ctx).V(2).Info("An API is not served", "api", a.gvr)
		b.notifyAll(a)
	}
}

// watch starts to watch an API. The caller holds the api's lock.
func (b *Book) watch(ctx context.Context, a *api) {
	ctx, a.stop = context.WithCancel(ctx)
	informer, err := b.informer(a)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Watching an API")
		return
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { b.notify(a, obj) },
		UpdateFunc: func(_, obj any) { b.notify(a, obj) },
		DeleteFunc: func(obj any) { b.notify(a, obj) },
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil { // only a stopped informer refuses
		klog.FromContext(ctx).Error(err, "Watching an API", "api", a.gvr)
		return
	}
	a.objects, a.synced = informer.GetIndexer(), registration.HasSynced
	klog.FromContext(ctx).Info("Watching an API that is served", "api", a.gvr)
	go informer.RunWithContext(ctx)
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			b.notifyAll(a)
		}
	}()
}

func (b *Book) notify(a *api, obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	if a.gvr == hyperNodes {
		b.spoil()
		b.notifyAll(a)
		return
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return
	}
	for _, f := range b.changed {
		f(types.NamespacedName{Namespace: namespace, Name: a.resource() + "/" + name})
	}
}

func (b *Book) notifyAll(a *api) {
	if a.gvr == hyperNodes {
		b.spoil()
	}
	for _, f := range b.allChanged {
		f(a.resource())
	}
}

// resource is the kind's name in kubectl.
func (a *api) resource() string { return a.gvr.GroupResource().String() }

// of returns an API by its resource name; nil: unknown.
func (b *Book) of(resource string) *api {
	at := slices.IndexFunc(b.apis, func(a *api) bool { return a.resource() == resource })
	if at < 0 {
		return nil
	}
	return b.apis[at]
}

// get returns a group's object, or an error for users.
func (b *Book) get(key types.NamespacedName) (runtime.Object, *api, error) {
	resource, name, _ := membership.External(key)
	a := b.of(resource)
	if a == nil {
		return nil, nil, fmt.Errorf("API %s is unknown", resource)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.state == absent:
		return nil, a, fmt.Errorf("the pod is in group %s of %s, in version %s, which this cluster does not serve: install it, or remove the group from the pod", name, resource, a.gvr.Version)
	case a.state == unasked || a.synced == nil || !a.synced():
		return nil, a, gangcache.ErrTermsUnknown
	}
	obj, exists, err := a.objects.GetByKey(key.Namespace + "/" + name)
	if err != nil || !exists {
		return nil, a, fmt.Errorf("%s/%s does not exist in namespace %s: create it", resource, name, key.Namespace)
	}
	object, ok := obj.(runtime.Object)
	if !ok {
		return nil, a, fmt.Errorf("%s/%s is a %T", resource, name, obj)
	}
	return object, a, nil
}

// Terms returns the terms of a gang, of which one pod is given. It takes only leaf locks. Any user who may create pods can write a size, so
// a size above v1alpha1.MaxMembers is an error: the scheduler's work grows with it.
func (b *Book) Terms(key types.NamespacedName, pod *corev1.Pod) (gangcache.Terms, error) {
	t, err := b.terms(key, pod)
	if n := max(t.Size, t.Min); err == nil && n > v1alpha1.MaxMembers {
		return gangcache.Terms{}, fmt.Errorf("gang %s requests %d pods: the limit is %d", key, n, v1alpha1.MaxMembers)
	}
	return t, err
}

func (b *Book) terms(key types.NamespacedName, pod *corev1.Pod) (gangcache.Terms, error) {
	if _, _, foreign := membership.External(key); !foreign {
		return gangcache.OwnTerms(pod)
	}
	object, _, err := b.get(key)
	if err != nil {
		return gangcache.Terms{}, err
	}
	switch pg := object.(type) {
	case *coscheduling.PodGroup:
		return coschedulingTerms(pg)
	case *vcscheduling.PodGroup:
		return volcanoTerms(pg)
	case *schedulingv1beta1.PodGroup:
		return nativeTerms(pg)
	}
	return gangcache.Terms{}, fmt.Errorf("%s cannot be decoded: it does not match its API", key)
}

func (b *Book) spoil() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stale = true
}

// Tiers returns the levels that HyperNodes make; nil: there are none. Tiers returns the same value until they change.
func (b *Book) Tiers(logger klog.Logger) *Tiers {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stale {
		return b.tiers
	}
	b.stale = false
	a := b.apis[len(b.apis)-1]
	a.mu.Lock()
	var all []*vctopology.HyperNode
	if a.objects != nil {
		for _, obj := range a.objects.List() {
			if h, ok := obj.(*vctopology.HyperNode); ok {
				all = append(all, h)
			}
		}
	}
	a.mu.Unlock()
	var wrong []string
	b.tiers, wrong = tiersOf(all)
	for _, w := range wrong {
		logger.Info("Part of a HyperNode is ignored", "reason", w)
	}
	return b.tiers
}
