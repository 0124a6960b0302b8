package scheduling

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
)

const (
	gpu    = "nvidia.com/gpu"
	source = "../.."
)

// stage is a cluster of simulated nodes without a Holdfast scheduler.
type stage struct {
	t *testing.T
	// root is the test that owns the cluster; t is the part that runs.
	root    *testing.T
	ctx     context.Context
	cluster *devcluster.Cluster
	client  kubernetes.Interface
	config  string
	// kubeconfig is the kubeconfig of the replicas.
	kubeconfig string
	// leader and follower are the replicas, if a test has two.
	leader, follower *replica
	// plains counts the sets of plain nodes.
	plains int
	// slow: replicas that are started later write at most 20 times a second.
	slow bool
}

// newStage starts a cluster; args are further arguments of its control plane.
func newStage(t *testing.T, nodes int, args ...string) *stage {
	t.Helper()
	s := &stage{t: t, root: t, ctx: t.Context(), cluster: devcluster.Start(t, devcluster.Options{SimNodes: nodes, Args: args})}
	s.kubeconfig = s.cluster.Kubeconfig()
	config, err := s.cluster.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"namespace.yaml", "priorityclass.yaml", "crd/holdfast.dev_gangs.yaml", "scheduler/preview.yaml"} {
		if out, err := s.cluster.Kubectl(s.ctx, "apply", "-f", filepath.Join(source, "manifests", file)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	s.config = filepath.Join(t.TempDir(), "config.yaml")
	return s
}

// lease matches the settings of leader election. Tests use shorter times than the manifests, to save time, but long enough that a leader
// can renew its lease on a busy machine that stalls for some seconds.
var lease = regexp.MustCompile(`leaseDuration: \S+ renewDeadline: \S+ retryPeriod: \S+`)

// patient is appended to the configuration of the manifests. With it room is reserved for a gang after a second instead of a minute.
const patient = `    pluginConfig:
      - name: Holdfast
        args: {apiVersion: scheduling.holdfast.dev/v1alpha1, kind: HoldfastArgs, reservationAfter: 1s}
`

// start starts a replica with the configuration of the manifests.
func (s *stage) start() *replica {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(source, "manifests/scheduler/config.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	if !lease.Match(text) {
		s.t.Fatal("the shipped configuration has no lease")
	}
	text = lease.ReplaceAll(text, []byte("leaseDuration: 7s, renewDeadline: 6s, retryPeriod: 500ms,"))
	text = bytes.Replace(text, []byte("clientConnection: {"), []byte("clientConnection: {kubeconfig: "+s.kubeconfig+", "), 1)
	text = append(text, patient...)
	if s.slow {
		fast := []byte("qps: 5000, burst: 5000")
		if !bytes.Contains(text, fast) {
			s.t.Fatalf("the shipped configuration does not say %s", fast)
		}
		text = bytes.Replace(text, fast, []byte("qps: 20, burst: 1"), 1)
	}
	if err := os.WriteFile(s.config, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	r := &replica{program: filepath.Join(source, "bin/holdfast-scheduler"), port: freePort(s.t), preview: freePort(s.t), pause: time.Second}
	r.args = []string{"--config=" + s.config, "--feature-gates=NominatedNodeNameForExpectation=false",
		"--authentication-kubeconfig=" + s.kubeconfig, "--authorization-kubeconfig=" + s.kubeconfig, "--v=2",
		fmt.Sprintf("--secure-port=%d", r.port), fmt.Sprintf("--preview-bind-address=127.0.0.1:%d", r.preview), "--cert-dir=" + s.root.TempDir()}
	if err := r.launch(s.root); err != nil {
		s.t.Fatalf("%v; build it with: make holdfast-scheduler", err)
	}
	s.root.Cleanup(func() { // the next part uses the cluster
		r.kill()
		if why := crash.FindString(r.said()); why != "" {
			s.root.Errorf("the replica on port %d crashed: %s", r.port, why)
		}
		if s.root.Failed() {
			all := strings.Split(r.said(), "\n")
			s.root.Logf("last output of the replica on port %d:\n%s", r.port, strings.Join(all[max(0, len(all)-40):], "\n"))
		}
	})
	s.until("the replica to be ready, whether it leads or not", func() bool { return get(r.port, "/readyz") == http.StatusOK })
	return r
}

// acting returns the leading one of a test's two replicas: the other one if the first has lost its lease.
func (s *stage) acting() *replica {
	s.t.Helper()
	token := s.token(v1alpha1.PreviewServiceAccount, v1alpha1.PreviewAudience)
	s.until("a replica to lead", func() bool {
		if s.leader.leads(s.t, token) {
			return true
		}
		if s.follower != nil && s.follower.leads(s.t, token) {
			s.leader, s.follower = s.follower, s.leader
			return true
		}
		return false
	})
	return s.leader
}

// leads requests a preview, which only the leading replica answers. A replica that is starting does not respond.
func (r *replica) leads(t *testing.T, token string) bool {
	t.Helper()
	if get(r.port, "/readyz") != http.StatusOK {
		return false
	}
	code, text := r.ask(t, token, *member("x", 0, 1, "x-0"))
	if code != http.StatusOK && code != http.StatusServiceUnavailable {
		t.Fatalf("code %d: %s", code, text)
	}
	return code == http.StatusOK
}

// ports has all that freePort returned: until a replica listens, the system takes its port for a free one.
var ports sync.Map

func freePort(t *testing.T) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, taken := ports.LoadOrStore(port, true); !taken {
			return port
		}
	}
}

var insecure = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

func get(port int, path string) int {
	r, err := insecure.Get(fmt.Sprintf("https://127.0.0.1:%d%s", port, path))
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	return r.StatusCode
}

// ask requests a preview from a replica.
func (r *replica) ask(t *testing.T, token string, pods ...corev1.Pod) (int, []byte) {
	t.Helper()
	body, err := json.Marshal(v1alpha1.PreviewRequest{Pods: pods})
	if err != nil {
		t.Fatal(err)
	}
	return r.request(t, token, http.MethodPost, v1alpha1.PreviewPath, bytes.NewReader(body))
}

// fabric requests the fragmentation of the fabric from a replica.
func (r *replica) fabric(t *testing.T, token string) (int, []byte) {
	t.Helper()
	return r.request(t, token, http.MethodGet, v1alpha1.FabricPath, nil)
}

func (r *replica) request(t *testing.T, token, method, path string, body io.Reader) (int, []byte) {
	t.Helper()
	q, err := http.NewRequest(method, fmt.Sprintf("https://127.0.0.1:%d%s", r.preview, path), body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set(v1alpha1.PreviewTokenHeader, token)
	a, err := insecure.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, text
}

func (s *stage) token(account string, audiences ...string) string {
	s.t.Helper()
	r, err := s.client.CoreV1().ServiceAccounts(v1alpha1.Namespace).CreateToken(s.ctx, account,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: ptr.To[int64](600)},
		}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Status.Token
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	eventually.Holds(s.t, what, func() (bool, any) { return ok(), s.seen })
}

// seen is each pod's node, or why it has none.
func (s *stage) seen() string {
	var all []string
	for name, p := range s.pods() {
		said := name + " on " + cmp.Or(p.Spec.NodeName, "no node")
		for _, c := range p.Status.Conditions {
			said += fmt.Sprintf(", %s %s: %s", c.Type, c.Status, c.Message)
		}
		all = append(all, said)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// member is a pod that takes a whole simulated node.
func member(gang string, slot, size int, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
			Labels:      map[string]string{v1alpha1.LabelGang: gang, "batch.kubernetes.io/job-completion-index": fmt.Sprint(slot)},
			Annotations: map[string]string{v1alpha1.AnnotationGangSize: fmt.Sprint(size), v1alpha1.AnnotationGangSlot: fmt.Sprint(slot)}},
		Spec: corev1.PodSpec{
			SchedulerName:                 v1alpha1.SchedulerName,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{gpu: resource.MustParse("8")}}}},
		},
	}
}

func (s *stage) create(p *corev1.Pod) {
	s.t.Helper()
	if _, err := s.client.CoreV1().Pods(p.Namespace).Create(s.ctx, p, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// pods lists the existing pods, by name.
func (s *stage) pods() map[string]*corev1.Pod {
	s.t.Helper()
	list, err := s.client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[string]*corev1.Pod{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

func (s *stage) bound(names ...string) func() bool {
	return func() bool {
		all := s.pods()
		for _, n := range names {
			if all[n] == nil || all[n].Spec.NodeName == "" {
				return false
			}
		}
		return true
	}
}
