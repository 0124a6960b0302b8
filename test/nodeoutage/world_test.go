package nodeoutage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth/budget"
	nodecontroller "holdfast.dev/holdfast/nodehealth/controller"
	"holdfast.dev/holdfast/test/devcluster"
)

// gate is the connection of the controller and the nodes to the API server. While it is shut, it cuts every connection.
type gate struct {
	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
}

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, errors.New("the API server is away")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		g.conns[conn] = true
	}
	return conn, err
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = shut; shut {
		for conn := range g.conns {
			_ = conn.Close() // it may have closed already
		}
		clear(g.conns)
	}
}

// world is a cluster, its nodes and the controller that leads.
type world struct {
	t      *testing.T
	ctx    context.Context
	direct *kubernetes.Clientset
	config *rest.Config
	gate   *gate
	// lines is what the controllers logged.
	lines chan string

	mu sync.Mutex
	// silent are the nodes whose lease is not renewed. agents has the time of each agent's last report. The agent of a talking pod has
	// always just reported. Guarded by mu.
	silent map[string]bool
	talks  map[string]bool
	agents map[string]time.Time
}

func newWorld(t *testing.T) (*world, *devcluster.Cluster) {
	ctrllog.SetLogger(logr.Discard()) // relevant lines are logged through w.lines
	c := devcluster.Start(t, devcluster.Options{SimNodes: 1})
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, config: config, gate: &gate{conns: map[net.Conn]bool{}}, lines: make(chan string, 10000),
		silent: map[string]bool{}, talks: map[string]bool{}, agents: map[string]time.Time{}}
	if w.direct, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.ctx = ctx
	return w, c
}

// through is the configuration of a client that connects through the gate.
func (w *world) through() *rest.Config {
	c := rest.CopyConfig(w.config)
	c.Dial = w.gate.dial
	c.Timeout = 0
	return c
}

// LastContact returns the time of an agent's last report, as the coordinator would.
func (w *world) LastContact(uid string) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.talks[uid] {
		w.agents[uid] = time.Now()
	}
	at, ok := w.agents[uid]
	return at, ok
}

func (w *world) talk(uid types.UID, talks bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.talks[string(uid)] = talks
}

func (w *world) mute(node string, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[node] = silent
}

// lead starts a controller; stop ends it and waits.
func (w *world) lead(config budget.Config, dryRun bool) (stop func()) {
	w.t.Helper()
	logger := funcr.New(func(_, args string) {
		select {
		case w.lines <- args:
		default:
		}
	}, funcr.Options{})
	mgr, err := ctrl.NewManager(
		w.through(),
		ctrl.Options{Scheme: clientgoscheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
			Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}:          {Transform: nodecontroller.SlimNode},
				&coordinationv1.Lease{}: {Transform: nodecontroller.SlimLease, Namespaces: map[string]cache.Config{corev1.NamespaceNodeLease: {}}},
			}}},
	)
	if err != nil {
		w.t.Fatal(err)
	}
	nodes, err := nodecontroller.New(
		nodecontroller.Options{
			Informers:    mgr.GetCache(),
			Reader:       mgr.GetCache(),
			Writer:       mgr.GetClient(),
			Recorder:     mgr.GetEventRecorder("holdfast-nodes"),
			Contacts:     w,
			Now:          time.Now,
			Log:          logger,
			Budget:       config,
			DomainLabels: []string{"rack"},
			DryRun:       dryRun,
		},
	)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := nodes.SetupWithManager(mgr); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the manager: %v", err)
		}
	}
}

func name(i int) string { return fmt.Sprintf("nb-%02d", i) }

// nodes creates n nodes with GPUs, in two racks, and renews their leases through the gate.
func (w *world) nodes(n int) {
	w.t.Helper()
	at := metav1.Now()
	for i := 1; i <= n; i++ {
		gpus := corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse("8"),
			"cpu":            resource.MustParse("8"),
			"memory":         resource.MustParse("1Gi"),
			"pods":           resource.MustParse("10"),
		}
		node, err := w.direct.CoreV1().Nodes().Create(w.ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"rack": fmt.Sprintf("r%d", i%2)}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{Capacity: gpus, Allocatable: gpus,
				Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: at, LastTransitionTime: at},
				}},
		}, metav1.CreateOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		holder, now := node.Name, metav1.NewMicroTime(time.Now())
		if _, err := w.direct.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(w.ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name:            node.Name,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now},
		}, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	renewer, err := kubernetes.NewForConfig(w.through())
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		for w.ctx.Err() == nil {
			for i := 1; i <= n; i++ {
				w.renew(renewer, name(i))
			}
			select {
			case <-w.ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
}

func (w *world) renew(c *kubernetes.Clientset, node string) {
	w.mu.Lock()
	silent := w.silent[node]
	w.mu.Unlock()
	if silent {
		return
	}
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	// A failed renewal is a silent lease, which the test is about.
	_, _ = c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
}

// pod places a pod of a gang on the node.
func (w *world) pod(node string) types.UID {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-" + node, Namespace: "default", Labels: map[string]string{v1alpha1.LabelGang: "llama"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "train", Image: "none"}}},
	}
	var made *corev1.Pod
	eventually.Succeeds(w.t, "a pod on "+node, func() error {
		var err error
		made, err = w.direct.CoreV1().Pods("default").Create(w.ctx, pod, metav1.CreateOptions{})
		return err
	})
	return made.UID
}

// verdict writes what the node's daemon would write.
func (w *world) verdict(node string, action v1alpha1.NodeAction, cause string) {
	w.t.Helper()
	text, err := json.Marshal(v1alpha1.NodeHealth{Action: action, Cause: cause, Message: "the test says so", Since: metav1.NowMicro()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.annotate(node, v1alpha1.AnnotationHealth, string(text))
}

// request writes what kubectl holdfast evict would write, for a span from now.
func (w *world) request(node string, r v1alpha1.NodeEviction, span time.Duration) {
	w.t.Helper()
	r.At, r.Until = metav1.NowMicro(), metav1.NewMicroTime(time.Now().Add(span))
	text, err := json.Marshal(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.annotate(node, v1alpha1.AnnotationEvict, string(text))
}

// suspect writes what a gang of each namespace suspects of a node; proven: a node check found it.
func (w *world) suspect(node string, span time.Duration, proven bool, namespaces ...string) {
	w.t.Helper()
	var words []v1alpha1.NodeSuspicion
	for _, n := range namespaces {
		words = append(words, v1alpha1.NodeSuspicion{
			Namespace: n, Gang: "bert", Cause: v1alpha1.CauseNodeCheckFailed, At: metav1.NowMicro(),
			Until: metav1.NewMicroTime(time.Now().Add(span)), Proven: proven,
		})
	}
	text, err := json.Marshal(words)
	if err != nil {
		w.t.Fatal(err)
	}
	w.annotate(node, v1alpha1.AnnotationSuspicions, string(text))
}

// annotate writes an annotation; nil removes it.
func (w *world) annotate(node, key string, value any) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.direct.CoreV1().Nodes().Patch(w.ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// stands is the decision about the node: "Evict", "Hold Breaker", "Evict dead" or "".
func (w *world) stands(node string) (string, error) {
	n, err := w.direct.CoreV1().Nodes().Get(w.ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == v1alpha1.TaintOutage && t.Effect == corev1.TaintEffectNoSchedule
	})
	text, ok := n.Annotations[v1alpha1.AnnotationOutage]
	switch {
	case ok != tainted:
		return "", fmt.Errorf("%s: annotation %q, taints %v", node, text, n.Spec.Taints)
	case !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/theirs" }):
		return "", fmt.Errorf("%s lost its owner's taint: %v", node, n.Spec.Taints)
	case !ok:
		return "", nil
	}
	var o v1alpha1.NodeOutage
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return "", err
	}
	words := []string{string(o.Decision), o.Reason}
	if o.Dead {
		words = append(words, "dead")
	}
	if o.Idle {
		words = append(words, "idle")
	}
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "), nil
}

func (w *world) uid(node string) types.UID {
	w.t.Helper()
	pod, err := w.direct.CoreV1().Pods("default").Get(w.ctx, "on-"+node, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pod.UID
}

// event returns an error unless the node has an event of that reason with these words in its note.
func (w *world) event(node, reason string, words ...string) error {
	list, err := w.direct.EventsV1().Events(metav1.NamespaceDefault).List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Node" && e.Regarding.Name == node && e.Reason == reason &&
			!slices.ContainsFunc(words, func(s string) bool { return !strings.Contains(e.Note, s) }) {
			return nil
		}
	}
	return fmt.Errorf("no event %s among %d", reason, len(list.Items))
}

// expect waits until the named nodes have these decisions, and all others have none.
func (w *world) expect(want map[int]string, n int) {
	w.t.Helper()
	eventually.Succeeds(w.t, fmt.Sprint("decisions ", want), func() error {
		for i := 1; i <= n; i++ {
			got, err := w.stands(name(i))
			if err != nil {
				return err
			}
			if got != want[i] {
				return fmt.Errorf("%s: %q, want %q", name(i), got, want[i])
			}
		}
		return nil
	})
}

// logged waits for a line with all of these words, and returns the lines before it.
func (w *world) logged(words ...string) (before []string) {
	w.t.Helper()
	timeout := time.After(eventually.Timeout)
	for {
		select {
		case line := <-w.lines:
			if !slices.ContainsFunc(words, func(s string) bool { return !strings.Contains(line, s) }) {
				return before
			}
			before = append(before, line)
		case <-timeout:
			w.t.Fatalf("no line with %q; there were %q", words, before)
		}
	}
}
