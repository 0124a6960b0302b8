package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Bind binds members of a forming gang as the default binder does, with a stamp: the API server puts a binding's
// annotations on the pod in the same write. All other pods are left to the default binder, which must come after.
func (p *Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	key, ok := p.mine(pod)
	if !ok {
		return fwk.NewStatus(fwk.Skip)
	}
	stamp := p.ledger.stamp(key, pod.UID)
	if stamp == "" {
		return fwk.NewStatus(fwk.Skip)
	}
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: map[string]string{v1alpha1.AnnotationForming: stamp}},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}
	if cacher := p.handle.APICacher(); cacher != nil {
		done, err := cacher.BindPod(binding)
		if err == nil {
			err = cacher.WaitOnFinish(ctx, done)
		}
		return fwk.AsStatus(err)
	}
	return fwk.AsStatus(util.BindPod(ctx, p.handle.ClientSet(), binding))
}
