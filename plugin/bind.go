package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Bind binds members as the default binder does. The binding carries annotations that the API server puts on the pod in the same write: the
// node's topology domain, and a stamp in an initial placement. All other pods are left to the default binder, which must come after. The
// number of bindings at a time is limited: kube-scheduler sets no limit, and a large gang would open hundreds of connections to a busy API
// server.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	key, ok := p.gangOf(pod)
	if !ok {
		return fwk.NewStatus(fwk.Skip)
	}
	notes := map[string]string{}
	if stamp := p.gangs.Stamp(key, pod.UID); stamp != "" {
		notes[v1alpha1.AnnotationInitialPlacement] = stamp
	}
	if place, err := state.Read(placeKey); err == nil {
		if at, ok := place.(plannedNode); ok && at != "" {
			notes[v1alpha1.AnnotationTopologyDomain] = string(at)
		}
	}
	select {
	case p.binding <- struct{}{}:
		defer func() { <-p.binding }()
	case <-ctx.Done():
		return fwk.AsStatus(ctx.Err())
	}
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: notes},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}
	if cacher := p.handle.APICacher(); cacher != nil {
		done, err := cacher.BindPod(binding)
		if err == nil {
			err = cacher.WaitOnFinish(ctx, done)
		}
		p.noteBinding(klog.FromContext(ctx), key, pod, node, err)
		return fwk.AsStatus(err)
	}
	err := util.BindPod(ctx, p.handle.ClientSet(), binding)
	p.noteBinding(klog.FromContext(ctx), key, pod, node, err)
	return fwk.AsStatus(err)
}
