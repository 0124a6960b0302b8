package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/test/harness"
)

// largestGangs creates as many jobs as the namespace may have, each with as many pods as a gang may have. None of the pods exists, so the
// records of the gangs must be small.
func largestGangs(ctx context.Context, m *tenant) (string, error) {
	if err := m.Until(ctx, "what other attacks made is gone", eventually.Timeout, func(ctx context.Context) (bool, string) {
		gangs := &v1alpha1.GangList{}
		err := m.Client().List(ctx, gangs, client.InNamespace(mallory))
		return err == nil && len(gangs.Items) == 1, fmt.Sprintf("%d gangs, %v", len(gangs.Items), err)
	}); err != nil {
		return "", err
	}
	said := ""
	for i := range maxGangs - 1 { // one job is that of the attacking pod
		j := job(fmt.Sprintf("largest-%d", i), func(j *batchv1.Job) {
			j.Spec.Parallelism, j.Spec.Completions = ptr.To[int32](v1alpha1.MaxMembers), ptr.To[int32](v1alpha1.MaxMembers)
		})
		err := m.api.Create(ctx, j)
		if err == nil {
			said, err = m.gangOf(ctx, j)
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("of %d jobs the last: %s", maxGangs-1, said), nil
}

// largeJobs creates Jobs of 1 MiB that do not use Holdfast.
func largeJobs(ctx context.Context, m *tenant) (string, error) {
	const n = 32
	failed := make(chan error, n)
	each(n, func(i int) {
		failed <- m.api.Create(ctx, job(fmt.Sprintf("large-%d", i), func(j *batchv1.Job) {
			j.Annotations = nil
			j.Spec.Template.Spec.Containers[0].Args = []string{strings.Repeat("x", 1<<20)}
		}))
	})
	close(failed)
	for err := range failed {
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d Jobs of 1 MiB are there", n), nil
}

// fetches reports hundreds of failed fetches of different steps, as fast as the coordinator reads them.
func fetches(ctx context.Context, m *tenant) (string, error) {
	const n, atOnce, perSecond = 1000, 400, 200
	return m.speaks(ctx, func(address, token string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		l, err := m.connect(address)
		if err != nil {
			return "", err
		}
		defer l.Close()
		began := time.Now()
		stream, err := coordinatorv1.NewCoordinatorClient(l).Attach(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token))
		if err != nil {
			return "", err
		}
		for i := range uint64(n) {
			if err := stream.Send(&coordinatorv1.Report{
				Protocol:    protocol.Version,
				Ranks:       1,
				Storage:     true,
				FetchFailed: &coordinatorv1.Mark{Step: i + 1, Generation: 1},
			}); err != nil {
				return "", fmt.Errorf("after %d reports: %w", i, err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			return "", err
		}
		for err == nil {
			_, err = stream.Recv()
		}
		took := time.Since(began)
		if !errors.Is(err, io.EOF) { // after all reports were read the stream ends so
			return "", err
		}
		if least := time.Duration(n-atOnce) * time.Second / perSecond; took < least {
			return "", fmt.Errorf("%d reports were read in %.1f s, which may take %.1f s and more", n, took.Seconds(), least.Seconds())
		}
		return fmt.Sprintf("%d reports were read in %.1f s", n, took.Seconds()), nil
	})
}

// newLeaders creates a group of many kinds of pods without room. It re-creates the group's first pod again and again, which makes the
// scheduler plan all pods each time. Other gangs must be placed meanwhile.
func newLeaders(ctx context.Context, m *tenant) (string, error) {
	const n, times = 300, 10
	const name = "leaders"
	one := func(i int) *corev1.Pod {
		return pod(fmt.Sprintf("%s-%03d", name, i), inGroup(name), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(int64(1_000_000+i), resource.DecimalSI),
			}
		})
	}
	if err := m.crowd(ctx, name, n, one); err != nil {
		return "", err
	}
	ofIt := func(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, name+"-") }
	why, err := m.waits(ctx, ofIt, "pods wanted")
	if err != nil {
		return "", err
	}
	var longest time.Duration
	for range times {
		p := one(0)
		if err := m.api.Delete(ctx, p, client.GracePeriodSeconds(0)); err != nil {
			return "", err
		}
		if err := m.Until(ctx, "the pod is created again", eventually.Timeout, func(ctx context.Context) (bool, string) {
			err := m.api.Create(ctx, p)
			return err == nil, fmt.Sprint(err)
		}); err != nil {
			return "", err
		}
		began := time.Now()
		if err := placed(ctx, m.Cluster, victim, soon); err != nil {
			return "", err
		}
		longest = max(longest, time.Since(began))
	}
	return fmt.Sprintf("%s; a gang of the victim's was placed within %.1f s", why, longest.Seconds()), nil
}

// patchedStatus patches a pod through its status, with the right to do so.
func patchedStatus(patch string) func(context.Context, *tenant) (string, error) {
	return func(ctx context.Context, m *tenant) (string, error) {
		p := pod("plain", func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" })
		if err := m.api.Create(ctx, p); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		harmless := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"mine":"yes"}}}`))
		if err := m.api.Status().Patch(ctx, p.DeepCopy(), harmless); err != nil {
			return "", fmt.Errorf("she may not even patch labels of her own there: %w", err)
		}
		return refused(m.api.Status().Patch(ctx, p, client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
}

// endlessRegistry serves images from mallory's pod, at the address in the controller's flag. One response never ends and is sent as fast as
// it is read; another is sent one byte at a time.
func endlessRegistry(ctx context.Context, m *tenant) (string, error) {
	host, err := registryHost(ctx, m.Cluster)
	if err != nil {
		return "", err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: mallory, Name: "registry"}, Spec: corev1.ServiceSpec{ClusterIP: host,
		Selector: map[string]string{batchv1.JobNameLabel: train}, Ports: []corev1.ServicePort{{Port: registryPort}}}}
	if err := m.api.Create(ctx, service); err != nil {
		return "", err
	}
	listener, err := m.listen(ctx, fmt.Sprintf(":%d", registryPort))
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		var body io.Reader = &slow{left: 1 << 30, ctx: ctx}
		if strings.Contains(r.URL.Path, "/fast/") {
			body = blanks{}
		}
		_, _ = io.Copy(flushed{w}, body)
	})}
	go func() { _ = server.Serve(listener) }()
	defer func() { cancel(); _ = server.Close() }()
	asked := func(name string) (string, time.Duration) {
		began := time.Now()
		err := m.api.Create(ctx, job("hostile", func(j *batchv1.Job) {
			c := &j.Spec.Template.Spec.Containers[0]
			c.Command, c.Image = nil, fmt.Sprintf("%s:%d/%s/image:1", host, registryPort, name)
		}))
		return fmt.Sprint(err), time.Since(began)
	}
	var fast string
	// the address of the Service is reachable after a moment
	if err := m.Until(ctx, "the registry is reached", eventually.Timeout, func(context.Context) (bool, string) {
		fast, _ = asked("fast")
		return strings.Contains(fast, "sends more"), fast
	}); err != nil {
		return "", err
	}
	slowly, took := asked("slow")
	if took < 2*time.Second || took > 9*time.Second { // the API server gives up after 5 s, on a busy machine a little later
		return "", fmt.Errorf("after %.1f s: %s", took.Seconds(), slowly)
	}
	return fmt.Sprintf("%s; after %.1f s: %s", fast, took.Seconds(), slowly), nil
}

// blanks is an endless body.
type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// flushed sends each piece at once.
type flushed struct{ http.ResponseWriter }

func (f flushed) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	_ = http.NewResponseController(f.ResponseWriter).Flush()
	return n, err
}

// fullReports sends, for many pods of one namespace at once, the largest report that an agent can send. The pods need not run: an account
// that may create tokens for the namespace's accounts can create tokens for waiting pods.
func fullReports(ctx context.Context, m *tenant) (string, error) {
	const n = 16
	j := job("full", func(j *batchv1.Job) {
		// one pod does not attach, so no generation begins
		j.Spec.Suspend, j.Spec.Parallelism, j.Spec.Completions = nil, ptr.To[int32](n+1), ptr.To[int32](n+1)
		j.Spec.Template.Spec.NodeSelector = map[string]string{"nowhere": "yes"}
	})
	if err := m.api.Create(ctx, j); err != nil {
		return "", err
	}
	pods := &corev1.PodList{}
	if err := m.Until(ctx, "the job has its pods", eventually.Timeout, func(ctx context.Context) (bool, string) {
		err := m.api.List(ctx, pods, client.InNamespace(mallory), client.MatchingLabels{batchv1.JobNameLabel: j.Name})
		return err == nil && len(pods.Items) == n+1, fmt.Sprintf("%d pods, %v", len(pods.Items), err)
	}); err != nil {
		return "", err
	}
	address, err := m.leader(ctx)
	if err != nil {
		return "", err
	}
	report := fullReport()
	var mu sync.Mutex
	answers := map[string]int{}
	var attached []func()
	began := time.Now()
	each(n, func(i int) {
		end, how := m.reportsAs(ctx, address, &pods.Items[i], report)
		mu.Lock()
		defer mu.Unlock()
		answers[how]++
		attached = append(attached, end)
	})
	for _, end := range attached {
		end()
	}
	said := fmt.Sprintf("reports of %d pods were answered in %.1f s: %v", n, time.Since(began).Seconds(), answers)
	if answers["taken"] < n/2 {
		return "", errors.New(said)
	}
	return said, nil
}

// fullReport is the report of a pod with the maximal number of ranks, all failed, with as many tracebacks as an agent sends.
func fullReport() *coordinatorv1.Report {
	r := &coordinatorv1.Report{Protocol: protocol.Version, Ranks: protocol.MaxRanks, State: coordinatorv1.State_STATE_IDLE}
	for i := range uint32(protocol.MaxRanks) {
		exit := &coordinatorv1.Exit{Code: 1, At: 1}
		if i < 32 {
			exit.Traceback = strings.Repeat("x", protocol.MaxText)
		}
		r.Rank = append(r.Rank, &coordinatorv1.Rank{LocalRank: i, Exit: exit})
	}
	return r
}

// reportsAs attaches as a pod's agent, sends a report, and returns the result. The stream stays open until end is called.
func (m *tenant) reportsAs(ctx context.Context, address string, p *corev1.Pod, report *coordinatorv1.Report) (end func(), how string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	token, err := m.kube.CoreV1().
		ServiceAccounts(mallory).
		CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{
				v1alpha1.TokenAudience,
			}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}}}, metav1.CreateOptions{})
	if err != nil {
		return cancel, err.Error()
	}
	l, err := m.connect(address)
	if err != nil {
		return cancel, err.Error()
	}
	end = func() { cancel(); _ = l.Close() }
	stream, err := coordinatorv1.NewCoordinatorClient(l).Attach(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token.Status.Token))
	if err == nil {
		err = stream.Send(report)
	}
	if err == nil { // a report is read before the next one can be sent, so the first has been read once the second is sent
		err = stream.Send(&coordinatorv1.Report{Protocol: report.Protocol, Ranks: report.Ranks, Rank: report.Rank, Sequence: 1})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		return end, err.Error()
	}
	return end, "taken"
}

// registryPort is the port of endlessRegistry.
const registryPort = 5000

// registryHost is the address of the Service by which the controller reaches mallory's registry: its first numbers are those of the API
// server's address.
func registryHost(ctx context.Context, c *harness.Cluster) (string, error) {
	s := &corev1.Service{}
	if err := c.Client().Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, s); err != nil {
		return "", err
	}
	parts := strings.Split(s.Spec.ClusterIP, ".")
	if len(parts) != 4 {
		return "", fmt.Errorf("the API server's Service has address %q", s.Spec.ClusterIP)
	}
	return strings.Join(slices.Concat(parts[:3], []string{"250"}), "."), nil
}
