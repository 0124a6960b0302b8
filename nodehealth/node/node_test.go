package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth"
)

// server is the part of an API server that stores one Node. A patch applies only to the version that it names.
type server struct {
	t  *testing.T
	mu sync.Mutex
	// guarded by mu
	node   corev1.Node
	writes int
	refuse int
	before func(*corev1.Node) // called once between read and write, as another client
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse > 0 {
		s.refuse--
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodPatch {
		if !s.patch(w, r) {
			return
		}
	}
	_ = json.NewEncoder(w).Encode(&s.node)
}

func (s *server) bump() {
	var n int
	_, _ = fmt.Sscan(s.node.ResourceVersion, &n)
	s.node.ResourceVersion = fmt.Sprint(n + 1)
}

func (s *server) patch(w http.ResponseWriter, r *http.Request) bool {
	if s.before != nil {
		s.before(&s.node)
		s.before = nil
		s.bump()
	}
	body, _ := io.ReadAll(r.Body)
	old, _ := json.Marshal(&s.node)
	var out []byte
	var err error
	if strings.HasSuffix(r.URL.Path, "/status") {
		out, err = strategicpatch.StrategicMergePatch(old, body, corev1.Node{})
	} else {
		var meta metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &meta); err != nil || meta.ResourceVersion == "" {
			s.t.Errorf("a write of the whole list of taints must name the version: %s", body)
		}
		if meta.ResourceVersion != s.node.ResourceVersion {
			http.Error(w, "conflict", http.StatusConflict)
			return false
		}
		out, err = jsonpatch.MergePatch(old, body)
	}
	var n corev1.Node
	if err == nil {
		err = json.Unmarshal(out, &n)
	}
	if err != nil {
		s.t.Errorf("patch %s: %v", body, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	s.node = n
	s.writes++
	s.bump()
	return true
}

func (s *server) now() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.DeepCopy()
}

func (s *server) change(do func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s)
}

var others = []corev1.Taint{
	{Key: "example.com/a", Value: "1", Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: time.Unix(1_600_000_000, 0).UTC()}},
	{Key: v1alpha1.TaintOutage, Value: "GPULost", Effect: corev1.TaintEffectNoSchedule},
}

func start(t *testing.T) (*server, *Writer) {
	s := &server{t: t, node: corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "5", Annotations: map[string]string{"x": "y"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", Taints: others},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "R", Message: "m"}},
		},
	}}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	w := New(Options{Client: web.Client(), Server: web.URL, Node: "n1", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return s, w
}

var at = time.Unix(1_700_000_000, 123000).UTC()

func sick(c nodehealth.Cause, a nodehealth.Action) nodehealth.Verdict {
	return nodehealth.Verdict{Action: a, Cause: c, Message: "m", Next: "n", Since: at, Devices: []string{"GPU-1"}, Known: true, Boot: "b", Settled: 7,
		Evidence: []nodehealth.Evidence{{At: at, Source: nodehealth.NVML, Device: "GPU-1", Cause: c, Text: "t"}}}
}

var fine = nodehealth.Verdict{Known: true, Message: "nothing is wrong", Boot: "b"}

// stands reports whether the Node has exactly the verdict v and all its other content is unchanged.
func stands(t *testing.T, s *server, v nodehealth.Verdict) bool {
	n := s.now()
	got, err := Verdict(n.Annotations[v1alpha1.AnnotationHealth])
	if err != nil || got.Action != v.Action || got.Cause != v.Cause {
		return false
	}
	want := others
	if v.Action >= nodehealth.Exclude {
		want = append(
			append([]corev1.Taint{}, others...),
			corev1.Taint{Key: v1alpha1.TaintUnhealthy, Value: string(v.Cause), Effect: corev1.TaintEffectNoSchedule},
		)
	}
	if len(n.Status.Conditions) != 2 {
		return false
	}
	c, ready := n.Status.Conditions[0], n.Status.Conditions[1]
	if ready.Type != corev1.NodeReady {
		c, ready = ready, c
	}
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[v.Action == nodehealth.None]
	if c.Type != v1alpha1.ConditionHealthy || c.Status != status || v.Action != nodehealth.None && c.Reason != string(v.Cause) {
		return false // the first write has only a part
	}
	if !reflect.DeepEqual(taintsOf(n.Spec.Taints), taintsOf(want)) || n.Annotations["x"] != "y" || n.Spec.PodCIDR != "10.0.0.0/24" || ready.Reason != "R" {
		t.Fatalf("what is others' has changed: %+v", n)
	}
	return true
}

func text(t *testing.T, v nodehealth.Verdict) string {
	out, err := json.Marshal(Health(v))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func taintsOf(in []corev1.Taint) string {
	text, _ := json.Marshal(in)
	return string(text)
}

func TestVerdictComesAndGoes(t *testing.T) {
	s, w := start(t)
	for _, v := range []nodehealth.Verdict{
		fine,
		sick(nodehealth.GPULost, nodehealth.Exclude),
		sick(nodehealth.OffTheBus, nodehealth.Evict),
		sick(nodehealth.UnknownXid, nodehealth.Watch),
		fine,
	} {
		w.Publish(v)
		eventually.Holds(t, fmt.Sprint("the Node says ", v.Action), func() (bool, any) { return stands(t, s, v), s.now().ObjectMeta.Annotations })
	}
	v := sick(nodehealth.GPULost, nodehealth.Evict)
	w.Publish(v)
	eventually.Holds(t, "written", func() (bool, any) { return stands(t, s, v), s.now().ObjectMeta.Annotations })
	got, err := w.Load(context.Background())
	if err != nil || text(t, got) != text(t, v) {
		t.Errorf("read back %+v, %v; want %+v", got, err, v)
	}
}

// TestNothingIsWrittenTwice: an unchanged verdict causes no write.
func TestNothingIsWrittenTwice(t *testing.T) {
	s, w := start(t)
	w.Publish(sick(nodehealth.GPULost, nodehealth.Evict))
	eventually.Holds(t, "written", func() (bool, any) {
		return stands(t, s, sick(nodehealth.GPULost, nodehealth.Evict)), s.now().ObjectMeta.Annotations
	})
	var writes, more int
	s.change(func(s *server) { writes = s.writes })
	for range 20 {
		w.Publish(sick(nodehealth.GPULost, nodehealth.Evict))
	}
	v := sick(nodehealth.OffTheBus, nodehealth.Evict)
	w.Publish(v)
	eventually.Holds(t, "the next one", func() (bool, any) { return stands(t, s, v), s.now().ObjectMeta.Annotations })
	if s.change(func(s *server) { more = s.writes - writes }); more != 2 {
		t.Errorf("%d writes for one verdict", more)
	}
}

// TestOthersWriteAtTheSameTime: a taint that another client adds between read and write stays.
func TestOthersWriteAtTheSameTime(t *testing.T) {
	s, w := start(t)
	s.change(func(s *server) {
		s.before = func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "late", Effect: corev1.TaintEffectNoSchedule})
		}
	})
	w.Publish(sick(nodehealth.GPULost, nodehealth.Evict))
	eventually.Holds(t, "both taints", func() (bool, any) { now := s.now().Spec.Taints; return len(now) == len(others)+2, now })
}

// TestServerAway: after the API server was unavailable only the newest verdict is written.
func TestServerAway(t *testing.T) {
	s, w := start(t)
	s.change(func(s *server) { s.refuse = 3 })
	w.Publish(sick(nodehealth.GPULost, nodehealth.Evict))
	w.Publish(fine)
	eventually.Holds(t, "healthy", func() (bool, any) { return stands(t, s, fine), s.now().ObjectMeta.Annotations })
}

func TestUnknown(t *testing.T) {
	s, w := start(t)
	w.Publish(nodehealth.Verdict{Message: "no driver"})
	eventually.Holds(t, "Unknown", func() (bool, any) {
		for _, c := range s.now().Status.Conditions {
			if c.Type == v1alpha1.ConditionHealthy {
				return c.Status == corev1.ConditionUnknown && c.Message == "no driver", c
			}
		}
		return false, "no condition"
	})
}

func TestUnreadableAnnotationBeginsAnew(t *testing.T) {
	s, w := start(t)
	s.change(func(s *server) { s.node.Annotations[v1alpha1.AnnotationHealth] = "{" })
	if v, err := w.Load(context.Background()); err != nil || v.Action != nodehealth.None {
		t.Errorf("%+v, %v", v, err)
	}
}
