// Package harness serves tests, benchmarks and the demo that need a cluster with Holdfast. The package starts the
// cluster, connects as administrator, installs Holdfast's images and manifests, and waits until Holdfast is ready. It
// also kills processes of Holdfast for tests.
package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
)

// World is a cluster with its administrator's connection.
type World struct {
	// Started is the time of the connection.
	Started time.Time

	kubeconfig string
	kube       kubernetes.Interface
	client     client.Client
	mu         sync.Mutex // guards out
	out        io.Writer
}

// Connect connects to a cluster; out gets one line of progress per event.
func Connect(kubeconfig string, out io.Writer) (*World, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	cfg.QPS, cfg.Burst = 100, 200
	cfg.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	w := &World{Started: time.Now(), kubeconfig: kubeconfig, out: out}
	if w.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	if w.client, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	return w, nil
}

// Client reads and writes objects of the cluster, also Holdfast's.
func (w *World) Client() client.Client { return w.client }

// Kube reaches the cluster's built-in objects.
func (w *World) Kube() kubernetes.Interface { return w.kube }

// Say prints one line of progress.
func (w *World) Say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, "[%4.0fs] %s\n", time.Since(w.Started).Seconds(), fmt.Sprintf(format, args...))
}

// Until waits at most limit until holds is true, and prints the last observation every ten seconds.
func (w *World) Until(ctx context.Context, what string, limit time.Duration, holds func(context.Context) (bool, string)) error {
	began, told := time.Now(), time.Now()
	return eventually.Wait(ctx, what, limit, func(ctx context.Context) (bool, any) {
		ok, seen := holds(ctx)
		if !ok && time.Since(told) > 10*time.Second {
			told = time.Now()
			w.Say("  … waiting for %s (%.0f s): %s", what, time.Since(began).Seconds(), seen)
		}
		return ok, seen
	})
}

// During fails as soon as holds becomes false before the time is over.
func (w *World) During(ctx context.Context, what string, span time.Duration, holds func(context.Context) (bool, string)) error {
	end := time.Now().Add(span)
	for time.Now().Before(end) {
		if ok, seen := holds(ctx); !ok {
			return fmt.Errorf("%s: did not hold for %s: %s", what, span, seen)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

// Pods returns the pods of a job.
func (w *World) Pods(ctx context.Context, namespace, job string) ([]corev1.Pod, error) {
	list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Leader returns the pod that holds a lease of Holdfast's; nil: no existing pod does. A leader that ends in order gives the lease up first,
// so that it has no holder until another replica requests it.
func (w *World) Leader(ctx context.Context, lease string) (*corev1.Pod, error) {
	l, err := w.kube.CoordinationV1().Leases(v1alpha1.Namespace).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading lease %s: %w", lease, err)
	}
	holder, _, _ := strings.Cut(ptr.Deref(l.Spec.HolderIdentity, ""), "_") // a pod's name, and a suffix that differs between its processes
	if holder == "" {
		return nil, nil
	}
	p, err := w.kube.CoreV1().Pods(v1alpha1.Namespace).Get(ctx, holder, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading pod %s, which holds lease %s: %w", holder, lease, err)
	}
	return p, nil
}

// HasEvent reports whether an object has an event with the reason and text.
func (w *World) HasEvent(ctx context.Context, namespace, kind, name, reason, text string) (bool, string) {
	list, err := w.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		return false, err.Error()
	}
	var seen []string
	for _, e := range list.Items {
		if e.Reason == reason && strings.Contains(e.Message, text) {
			return true, e.Message
		}
		seen = append(seen, e.Reason+": "+e.Message)
	}
	return false, fmt.Sprintf("%d events: %s", len(list.Items), strings.Join(seen, " | "))
}

// Follow passes every line of a container's output to a function until the container or the context ends.
func (w *World) Follow(ctx context.Context, namespace, pod, container string, line func(string)) error {
	r, err := w.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line(lines.Text())
	}
	return lines.Err()
}
