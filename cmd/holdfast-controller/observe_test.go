package main

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"holdfast.dev/holdfast/api/v1alpha1"
	elasticcontroller "holdfast.dev/holdfast/elastic/controller"
	"holdfast.dev/holdfast/webhook/certs"
)

func TestResourceOf(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/nodes/n": "nodes", "/api/v1/namespaces/team/pods/p/eviction": "pods/eviction", "/apis/holdfast.dev/v1alpha1/namespaces/team/gangs/g/status": "gangs/status",
		"/api/v1/namespaces/team": "namespaces", "/apis/batch/v1/namespaces/team/jobs": "jobs", "/apis/events.k8s.io/v1/namespaces/team/events": "events",
		"/apis/authentication.k8s.io/v1/tokenreviews": "tokenreviews", "/healthz": "", "/": "", "/api/v1": "", "/apis/batch/v1": "",
	} {
		if got := resourceOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// apiServer serves only discovery, and records the requests.
func apiServer(t *testing.T) (url string, asked func() []string) {
	var mu sync.Mutex
	var all []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.Method+" "+resourceOf(r.URL.Path))
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","resources":[` +
			`{"name":"pods","kind":"Pod","namespaced":true},{"name":"nodes","kind":"Node"},{"name":"services","kind":"Service","namespaced":true},{"name":"events","kind":"Event","namespaced":true},` +
			`{"name":"jobs","kind":"Job","namespaced":true},{"name":"gangs","kind":"Gang","namespaced":true},{"name":"leases","kind":"Lease","namespaced":true},{"name":"secrets","kind":"Secret","namespaced":true},{"name":"mutatingwebhookconfigurations","kind":"MutatingWebhookConfiguration"}]}`))
	}))
	t.Cleanup(server.Close)
	return server.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		was := all
		all = nil
		return was
	}
}

// alone is set in the environment of a test that runs in a process of its own.
const alone = "HOLDFAST_TEST_ALONE"

// TestObservingSetsUp: with --observe-only the controllers that act are not set up, and the other controllers work without them. A
// controller's name stays taken until the process ends, which shows what was set up. So the test runs in a process of its own.
func TestObservingSetsUp(t *testing.T) {
	if os.Getenv(alone) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestObservingSetsUp$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestObservingSetsUp") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	url, asked := apiServer(t)
	o := defaults()
	o.observeOnly, o.agent.image, o.metricsAddress, o.healthAddress = true, "agent", "0", "0"
	o = o.settled()
	cfg := &rest.Config{Host: url}
	prepare(cfg, o)
	mgr, err := ctrl.NewManager(cfg, managerOptions(o, func(*tls.Config) {}, ctrlwebhook.NewServer(ctrlwebhook.Options{Port: 1})))
	if err != nil {
		t.Fatal(err)
	}
	rotator := certs.New(
		certs.Options{
			Client:  mgr.GetClient(),
			Secret:  types.NamespacedName{Namespace: v1alpha1.Namespace, Name: secretName},
			Webhook: webhookConfig,
			Names:   []string{"a"},
		},
	)
	if err := addControllers(mgr, rotator, o); err != nil {
		t.Fatal(err)
	}
	if err := addWebhooks(mgr, rotator, o); err != nil {
		t.Fatal(err)
	}
	// The name of a controller that acts is free. The name of a controller that only reports is taken.
	for name, taken := range map[string]bool{"gang": true, "elastic": false, "pending-replacements": false, "replaced": false} {
		_, err := controller.NewUnmanaged(name, controller.Options{Reconciler: reconcile.Func(nil)})
		if (err != nil) != taken {
			t.Errorf("controller %s is set up: %v", name, err)
		}
	}
	if err := elasticcontroller.IndexPods(mgr); err == nil {
		t.Error("the pods that the gang controller lists are not indexed")
	}
	for _, what := range asked() {
		if !strings.HasPrefix(what, "GET ") {
			t.Errorf("%s came through", what)
		}
	}
}

// TestOnlyObserving: with the flag no client of the process can evict, delete, taint or end anything. Holdfast's own reports are written.
func TestOnlyObserving(t *testing.T) {
	url, asked := apiServer(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	meta := metav1.ObjectMeta{Namespace: "team", Name: "a"}
	pod, node := &corev1.Pod{ObjectMeta: meta}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	gang := &v1alpha1.Gang{ObjectMeta: meta}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{}`))
	writes := map[string]func(context.Context, client.Client) error{
		"POST pods/eviction": func(ctx context.Context, c client.Client) error {
			return c.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{})
		},
		"DELETE pods": func(ctx context.Context, c client.Client) error { return c.Delete(ctx, pod.DeepCopy()) },
		"PATCH pods":  func(ctx context.Context, c client.Client) error { return c.Patch(ctx, pod.DeepCopy(), patch) },
		"PATCH nodes": func(ctx context.Context, c client.Client) error { return c.Patch(ctx, node.DeepCopy(), patch) },
		"PATCH jobs": func(ctx context.Context, c client.Client) error {
			return c.Patch(ctx, &batchv1.Job{ObjectMeta: meta}, patch)
		},
		"PATCH jobs/status": func(ctx context.Context, c client.Client) error {
			return c.Status().Patch(ctx, &batchv1.Job{ObjectMeta: meta}, patch)
		},
		"PATCH gangs/status": func(ctx context.Context, c client.Client) error { return c.Status().Patch(ctx, gang.DeepCopy(), patch) },
		"POST events": func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &corev1.Event{ObjectMeta: meta})
		},
	}
	for _, observe := range []bool{true, false} {
		cfg := &rest.Config{Host: url}
		prepare(cfg, options{observeOnly: observe})
		c, err := client.New(cfg, client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		for what, do := range writes {
			asked()
			err := do(t.Context(), c)
			_, resource, _ := strings.Cut(what, " ")
			want := !observe || slices.Contains(own, resource)
			if got := slices.Contains(asked(), what); got != want || !want && (err == nil || !strings.Contains(err.Error(), "--observe-only")) {
				t.Errorf("observing %v: %s came through: %v, %v", observe, what, got, err)
			}
		}
	}
}

// TestObservingDecidesOnNodesOnly: with the flag the node controller decides and writes no Node. If it was switched off, it stays off.
func TestObservingDecidesOnNodesOnly(t *testing.T) {
	for mode, want := range map[string]string{nodesAct: nodesDryRun, nodesDryRun: nodesDryRun, nodesOff: nodesOff} {
		o := options{observeOnly: true, nodes: nodeOptions{mode: mode}}
		if o = o.settled(); o.nodes.mode != want {
			t.Errorf("--nodes=%s becomes %s", mode, o.nodes.mode)
		}
		if o = (options{nodes: nodeOptions{mode: mode}}).settled(); o.nodes.mode != mode {
			t.Errorf("without the flag --nodes=%s becomes %s", mode, o.nodes.mode)
		}
	}
}
