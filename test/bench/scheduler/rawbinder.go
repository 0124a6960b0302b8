package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
)

// rawBinder binds pods and decides nothing. It has the client of a scheduler: a connection of its own, and the watches of pods and nodes.
type rawBinder struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	cancel context.CancelFunc
	// bound are the pods of bindAll.
	bound []*corev1.Pod
}

func (p *plane) rawBinder(ctx context.Context) (*rawBinder, error) {
	config := rest.CopyConfig(p.config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.Dial = (&net.Dialer{}).DialContext // else client-go shares the connection of the creators
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactory(client, 0)
	b := &rawBinder{client: client, pods: factory.Core().V1().Pods().Lister(), cancel: cancel}
	factory.Core().V1().Nodes().Informer()
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		cancel()
		return nil, fmt.Errorf("watching pods and nodes: %w", err)
	}
	return b, nil
}

// bindAll binds the pods that fit, in the order of the nodes.
func (t *trial) bindAll(ctx context.Context) error {
	b, bind := t.raw, t.names(true)
	pods, err := b.known(ctx, len(bind)+len(t.names(false)))
	if err != nil {
		return err
	}
	// Gangs that must be in one rack fill the racks in turn.
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	at := map[string]string{}
	for _, p := range pods {
		if bind[t.sys.id(p.Name)] {
			at[p.Name] = fmt.Sprintf(nodeName, len(b.bound))
			b.bound = append(b.bound, p)
		}
	}
	return figure.Each(binders(), b.bound, func(p *corev1.Pod) error {
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.Name, UID: p.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: at[p.Name]},
		}
		return b.client.CoreV1().Pods(namespace).Bind(ctx, binding, metav1.CreateOptions{})
	})
}

// writeEvents writes the event of each bound pod, as a scheduler does.
func (t *trial) writeEvents(ctx context.Context) error {
	return figure.Each(binders(), t.raw.bound, func(p *corev1.Pod) error {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: p.Name},
			Reason:         scheduledReason,
			Type:           corev1.EventTypeNormal,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: p.Name},
			Message:        "Successfully assigned " + p.Name + " to a node",
		}
		_, err := t.raw.client.CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{})
		return err
	})
}

// known waits until the binder's watch has shown all pods.
func (b *rawBinder) known(ctx context.Context, n int) ([]*corev1.Pod, error) {
	for {
		pods, err := b.pods.Pods(namespace).List(labels.Everything())
		if err != nil || len(pods) >= n {
			return pods, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), fmt.Errorf("the watch has shown %d of %d pods", len(pods), n))
		}
	}
}

// binders is the number of concurrent bindings for the limit: the same as Holdfast's.
func binders() int {
	var args schedulingv1alpha1.HoldfastArgs
	args.Default()
	return int(*args.ParallelBindings)
}
