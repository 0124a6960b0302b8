package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Options say where the story is played.
type Options struct {
	// Kubeconfig and Kubectl reach a running cluster with at least three real nodes of two GPUs each on this machine.
	Kubeconfig, Kubectl string
	// Source is the root of the source tree: manifests and examples are applied from there.
	Source string
	// Manifests is what is applied; Source's own unless set.
	Manifests string
	// Dev runs holdfast-dev for the cluster, as a person would: "node", "fail", "n1", …
	Dev func(ctx context.Context, args ...string) (string, error)
	// LoadImages makes the product's images known to every node.
	LoadImages func(context.Context) error
	// WhileWarming, where set, is played while the ranks' standbys are being warmed, which takes as long without it.
	WhileWarming func(context.Context) error
	// Python runs the undisturbed comparison run on this machine.
	Python string
	// Out gets one line of progress per event.
	Out io.Writer
}

// World is a cluster on which the story is being played.
type World struct {
	Options
	kube    kubernetes.Interface
	client  client.Client
	started time.Time
	mu      sync.Mutex // guards Out
}

// NewWorld connects to the cluster.
func NewWorld(o Options) (*World, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	cfg.QPS, cfg.Burst = 100, 200
	cfg.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	w := &World{Options: o, started: time.Now()}
	if w.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	if w.client, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	return w, nil
}

// Say prints one line of progress.
func (w *World) Say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.Out, "[%4.0fs] %s\n", time.Since(w.started).Seconds(), fmt.Sprintf(format, args...))
}

// RunKubectl runs the cluster's own kubectl, as a person would.
func (w *World) RunKubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// apply applies objects given as text.
func (w *World) apply(ctx context.Context, objects string) error {
	cmd := exec.CommandContext(ctx, w.Kubectl, "apply", "-f", "-")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig)
	cmd.Stdin = strings.NewReader(objects)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w: %s", err, out)
	}
	return nil
}

// Until asks again and again whether something holds, and says what did not when time is up. The answer's text is what was seen last.
func (w *World) Until(ctx context.Context, what string, limit time.Duration, holds func(context.Context) (bool, string)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began, told := time.Now(), time.Now()
	for {
		ok, seen := holds(ctx)
		if ok {
			return nil
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			w.Say("  … waiting for %s (%.0f s): %s", what, time.Since(began).Seconds(), seen)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s; seen last: %s", what, limit, seen)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// during fails as soon as something stops to hold before the time is over.
func (w *World) during(ctx context.Context, what string, span time.Duration, holds func(context.Context) (bool, string)) error {
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

// Client reads and writes objects of the cluster.
func (w *World) Client() client.Client { return w.client }

// Gone waits until neither a job nor a pod of it is left.
func (w *World) Gone(ctx context.Context, job string) error {
	return w.Until(ctx, job+" is gone", time.Minute, func(ctx context.Context) (bool, string) {
		pods, err := w.Pods(ctx, job)
		if err != nil || len(pods) > 0 {
			return false, fmt.Sprintf("%d pods, %v", len(pods), err)
		}
		err = w.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: job}, &batchv1.Job{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}
