package hostile

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	coordinatorv1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
)

// anybody accepts any certificate.
var anybody = &tls.Config{InsecureSkipVerify: true}

// dial connects from the network of mallory's pod, as a program in the pod would.
func (m *tenant) dial(ctx context.Context, address string) (net.Conn, error) {
	return inNetwork(m, func() (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
	})
}

// listen waits for connections in that network.
func (m *tenant) listen(ctx context.Context, address string) (net.Listener, error) {
	return inNetwork(m, func() (net.Listener, error) { return (&net.ListenConfig{}).Listen(ctx, "tcp", address) })
}

// inNetwork calls do in the network of mallory's pod.
func inNetwork[T any](m *tenant, do func() (T, error)) (T, error) {
	type result struct {
		got T
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in another network now and ends with this goroutine
		var r result
		defer func() { done <- r }()
		network, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", m.shell.Host))
		if err != nil {
			r.err = err
			return
		}
		defer network.Close()
		if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			r.err = fmt.Errorf("entering the pod's network: %w", err)
			return
		}
		r.got, r.err = do()
	}()
	r := <-done
	return r.got, r.err
}

// get sends an HTTPS request from mallory's pod, and returns status and body.
func (m *tenant) get(ctx context.Context, url string, header http.Header) (string, error) {
	return m.ask(ctx, http.MethodGet, url, header, nil)
}

// ask is get with another method and a body.
func (m *tenant) ask(ctx context.Context, method, url string, header http.Header, body io.Reader) (string, error) {
	transport := &http.Transport{TLSClientConfig: anybody, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return m.dial(ctx, address) }}
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	if header != nil {
		request.Header = header
	}
	answer, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode < 400 {
		return "", fmt.Errorf("%s was answered: %d", url, answer.StatusCode)
	}
	return fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(string(text))), err
}

// token is a token of the namespace's default service account.
func (m *tenant) token(ctx context.Context, namespace, account string, audiences ...string) (string, error) {
	r, err := m.kube.CoreV1().
		ServiceAccounts(namespace).
		CreateToken(
			ctx,
			account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}},
			metav1.CreateOptions{},
		)
	if err != nil {
		return "", err
	}
	return r.Status.Token, nil
}

// preview is the URL of the scheduler's previews, and the headers that mallory can send: none, and one with her token.
func (m *tenant) preview(ctx context.Context) (url string, headers []http.Header, err error) {
	service, err := m.Kube().CoreV1().Services(v1alpha1.Namespace).Get(ctx, "holdfast-scheduler-preview", metav1.GetOptions{})
	if err != nil {
		return "", nil, err
	}
	own, err := m.token(ctx, mallory, "default", v1alpha1.PreviewAudience)
	return "https://" + service.Spec.ClusterIP, []http.Header{{}, {v1alpha1.PreviewTokenHeader: {own}}}, err
}

// asked queries the victim's placement: from a pod, and through the API server.
func asked(ctx context.Context, m *tenant) (string, error) {
	url, headers, err := m.preview(ctx)
	if err != nil {
		return "", err
	}
	var all []string
	for _, header := range headers {
		answer, err := m.get(ctx, url+v1alpha1.FabricPath, header)
		if err != nil {
			return "", err
		}
		all = append(all, answer)
	}
	_, err = m.kube.CoreV1().Services(v1alpha1.Namespace).ProxyGet("https", "holdfast-scheduler-preview", "preview", v1alpha1.FabricPath, nil).DoRaw(ctx)
	_, minted := m.token(ctx, v1alpha1.Namespace, v1alpha1.PreviewServiceAccount, v1alpha1.PreviewAudience)
	for _, err := range []error{err, minted} {
		if !apierrors.IsForbidden(err) {
			return "", fmt.Errorf("it was not forbidden: %w", err)
		}
		all = append(all, err.Error())
	}
	return strings.Join(all, "; "), nil
}

// metrics reads the metrics of controllers and schedulers, without a token and with mallory's.
func metrics(ctx context.Context, m *tenant) (string, error) {
	own, err := m.token(ctx, mallory, "default")
	if err != nil {
		return "", err
	}
	var all []string
	for name, port := range map[string]int{"controller": 8443, "scheduler": 10259} {
		pods, err := m.ours(ctx, name)
		if err != nil {
			return "", err
		}
		for _, header := range []http.Header{{}, {"Authorization": {"Bearer " + own}}} {
			answer, err := m.get(ctx, fmt.Sprintf("https://%s:%d/metrics", pods[0].Status.PodIP, port), header)
			if err != nil {
				return "", err
			}
			all = append(all, name+" "+answer)
		}
	}
	return strings.Join(all, "; "), nil
}

// ours are the pods of controller or scheduler.
func (m *tenant) ours(ctx context.Context, name string) ([]corev1.Pod, error) {
	list, err := m.Kube().CoreV1().Pods(v1alpha1.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast-" + name})
	if err == nil && len(list.Items) == 0 {
		err = errors.New("there is no " + name)
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// line is a connection to a coordinator.
type line struct {
	*grpc.ClientConn
}

func (m *tenant) connect(address string) (line, error) { return m.connectBy(address, m.dial) }

// connectBy connects with the given dial function.
func (m *tenant) connectBy(address string, dial func(context.Context, string) (net.Conn, error)) (line, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(anybody)), grpc.WithContextDialer(dial))
	return line{conn}, err
}

// attach sends a token and a report, and returns how the coordinator ends the stream, which it must do within two seconds.
func (l line) attach(ctx context.Context, token string, report *coordinatorv1.Report) error {
	return l.attachFor(ctx, 2*time.Second, token, report)
}

// attachFor is attach with a longer limit.
func (l line) attachFor(
	ctx context.Context,
	most time.Duration,
	token string,
	report *coordinatorv1.Report,
	options ...grpc.CallOption,
) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := coordinatorv1.NewCoordinatorClient(l).Attach(ctx, options...)
	if err != nil {
		return err
	}
	if report != nil {
		if err := stream.Send(report); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// leader is the address of the coordinator that accepts agents. On a busy machine the query is repeated.
func (m *tenant) leader(ctx context.Context) (string, error) {
	address := ""
	err := m.Until(ctx, "a coordinator that leads", eventually.Timeout, func(ctx context.Context) (bool, string) {
		var err error
		address, err = m.leads(ctx)
		return err == nil, fmt.Sprint(err)
	})
	return address, err
}

// leads queries each replica once.
func (m *tenant) leads(ctx context.Context) (string, error) {
	pods, err := m.ours(ctx, "controller")
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		address := net.JoinHostPort(p.Status.PodIP, "7443")
		l, err := m.connect(address)
		if err != nil {
			return "", err
		}
		err = l.attach(ctx, "", nil)
		_ = l.Close()
		if err != nil && strings.Contains(err.Error(), "no token") {
			return address, nil
		}
	}
	return "", errors.New("no replica leads")
}

// tokens sends the coordinator many different tokens that look like pods' tokens.
func tokens(ctx context.Context, m *tenant) (string, error) {
	const n = 1500
	before, err := m.reviews(ctx)
	if err != nil {
		return "", err
	}
	address, err := m.leader(ctx)
	if err != nil {
		return "", err
	}
	l, err := m.connect(address)
	if err != nil {
		return "", err
	}
	defer l.Close()
	const throttled = "sends too many new tokens: try again"
	began, reported := time.Now(), atomic.Int64{}
	each(n, func(i int) {
		claims := fmt.Sprintf(`{"aud":[%q],"exp":%d,"jti":"%d","kubernetes.io":{"namespace":%q,"pod":{"name":%q,"uid":%q}}}`,
			v1alpha1.TokenAudience, time.Now().Add(time.Hour).Unix(), i, mallory, m.pod.Name, m.pod.UID)
		parts := []string{`{"alg":"RS256"}`, claims, "signature"}
		for i := range parts {
			parts[i] = base64.RawURLEncoding.EncodeToString([]byte(parts[i]))
		}
		if err := l.attachFor(ctx, time.Minute, strings.Join(parts, "."), nil); err != nil && strings.Contains(err.Error(), throttled) {
			reported.Add(1)
		}
	})
	took := time.Since(began)
	after, err := m.reviews(ctx)
	if err != nil {
		return "", err
	}
	// A burst of 64 and 10 per second; controller and scheduler cause a few other reviews.
	if asked, most := after-before, 64+10*int(took.Seconds()+1)+20; asked < 1 || asked > most {
		return "", fmt.Errorf("the API server was asked about %d of %d tokens, %d at most", asked, n, most)
	}
	if reported.Load() < n/2 {
		return "", fmt.Errorf("%d of %d were answered: %s", reported.Load(), n, throttled)
	}
	return fmt.Sprintf("the API server was asked about %d of %d tokens in %.1f s; %d were answered: %s", after-before, n, took.Seconds(), reported.Load(), throttled), nil
}

var reviewed = regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="tokenreviews".*verb="POST".*\} (\d+)$`)

// reviews is the number of TokenReviews that the API server served.
func (m *tenant) reviews(ctx context.Context) (int, error) {
	text, err := m.Kubectl(ctx, "get", "--raw", "/metrics")
	all := 0
	for _, found := range reviewed.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(found[1])
		if err != nil {
			return 0, err
		}
		all += n
	}
	return all, err
}

// connections opens thousands of connections to the coordinator and keeps the accepted ones.
func connections(ctx context.Context, m *tenant) (string, error) {
	const n = 3000
	address, err := m.leader(ctx)
	if err != nil {
		return "", err
	}
	var mu sync.Mutex
	var open []net.Conn
	began := time.Now()
	each(n, func(int) {
		conn, err := m.dial(ctx, address)
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		secure := tls.Client(conn, anybody)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		open = append(open, secure)
	})
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	took := time.Since(began)
	if got, most := len(open), 64+10*int(took.Seconds()+1); got < 1 || got > most { // a burst of 64 and 10 per second
		return "", fmt.Errorf("%d of %d handshakes were made in %.1f s; one at least, %d at most", got, n, took.Seconds(), most)
	}
	return fmt.Sprintf("%d of %d handshakes were made in %.1f s", len(open), n, took.Seconds()), nil
}

// each calls do n times, some at a time.
func each(n int, do func(i int)) {
	var all sync.WaitGroup
	next := make(chan int)
	for range 16 {
		all.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}
