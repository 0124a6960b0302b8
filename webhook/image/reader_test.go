package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/webhook"
)

// store is a registry over TLS, with the name example.com.
type store struct {
	transport *http.Transport
	// front is called before the registry, if it is set. Requests of an earlier test may still be served.
	front atomic.Value // of front
}

// front reports whether it has answered the request.
type front func(http.ResponseWriter, *http.Request) (answered bool)

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, _ := s.front.Load().(front); f == nil || !f(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	s.transport = &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		},
	}
	return s
}

// image starts these.
func image(t *testing.T, entrypoint, cmd []string) v1.Image {
	t.Helper()
	img, err := mutate.Config(empty.Image, v1.Config{Entrypoint: entrypoint, Cmd: cmd})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func (s *store) push(t *testing.T, at string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithTransport(s.transport)); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return ref.Context().Digest(digest.String()).String()
}

// pushIndex pushes an index with one image per architecture.
func (s *store) pushIndex(t *testing.T, at string, images map[string]v1.Image) {
	t.Helper()
	var index v1.ImageIndex = empty.Index
	for _, arch := range []string{"unknown", "s390x", "arm64", "amd64"} {
		if img := images[arch]; img != nil {
			platform := &v1.Platform{OS: "linux", Architecture: arch}
			if arch == "unknown" { // as build tools add attestations to an index
				platform.OS = "unknown"
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
		}
	}
	ref, err := name.ParseReference(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index, remote.WithTransport(s.transport)); err != nil {
		t.Fatal(err)
	}
}

// reader returns a Reader that waits for a registry as long as a busy machine may need.
func (s *store) reader() *Reader {
	return New(Options{Transport: s.transport, Timeout: eventually.Timeout})
}

func ask(r *Reader, image string, change ...func(*webhook.ImageQuery)) (webhook.ImageProcess, error) {
	q := webhook.ImageQuery{Image: image, Namespace: "team", ServiceAccount: "default"}
	for _, f := range change {
		f(&q)
	}
	return r.Process(context.Background(), q)
}

func TestReads(t *testing.T) {
	s := newStore(t)
	at := s.push(t, "example.com/team/train:1", image(t, []string{"python3"}, []string{"train.py"}))
	want := webhook.ImageProcess{Image: at, Entrypoint: []string{"python3"}, Cmd: []string{"train.py"}}
	for _, as := range []string{"example.com/team/train:1", at} {
		if got, err := ask(s.reader(), as); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", as, got, err)
		}
	}
}

func TestArchitectures(t *testing.T) {
	s := newStore(t)
	arm, amd, z := image(t, []string{"arm"}, nil), image(t, []string{"amd"}, nil), image(t, []string{"z"}, nil)
	s.pushIndex(t, "example.com/both", map[string]v1.Image{"arm64": arm, "amd64": amd})
	s.pushIndex(t, "example.com/one", map[string]v1.Image{"arm64": arm, "unknown": z})
	s.pushIndex(t, "example.com/others", map[string]v1.Image{"arm64": arm, "s390x": z})
	r := s.reader()
	for _, c := range []struct{ image, arch, want, err string }{
		{image: "example.com/both", want: "amd"}, {image: "example.com/both", arch: "arm64", want: "arm"}, {image: "example.com/one", want: "arm"},
		{image: "example.com/others", err: "it exists for linux/{s390x,arm64} and not for linux/amd64: set nodeSelector kubernetes.io/arch in the pod template"},
	} {
		got, err := ask(r, c.image, func(q *webhook.ImageQuery) { q.Architecture = c.arch })
		if c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && (err != nil || got.Entrypoint[0] != c.want) {
			t.Errorf("%s for %q: %v, %v", c.image, c.arch, got.Entrypoint, err)
		}
	}
}

// TestReasons: whatever prevents reading an image, an error comes soon. Its text contains nothing that the server sent.
func TestReasons(t *testing.T) {
	s := newStore(t)
	s.push(t, "example.com/train", image(t, []string{"a"}, nil))
	s.push(t, "example.com/wide", image(t, []string{strings.Repeat("a", 40<<10)}, nil))
	s.push(t, "example.com/vast", image(t, []string{strings.Repeat("a", 9<<20)}, nil))
	release := make(chan struct{})
	defer close(release)
	redirect := func(to string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, to, http.StatusFound)
				return true
			}
			return false
		}
	}
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(code)
			fmt.Fprint(w, "SECRET")
			return true
		}
	}
	for name, c := range map[string]struct {
		image, want string
		front       func(http.ResponseWriter, *http.Request) bool
	}{
		"no image":       {image: "example.com/absent:1", want: "registry example.com has no such image"},
		"no name":        {image: "Example.com/UPPER CASE", want: `"Example.com/UPPER CASE" is no image name`},
		"credentials":    {front: status(401), want: "registry example.com requires credentials, and holdfast-controller may not read pull secrets (--image-pull-secrets)"},
		"out of order":   {front: status(502), want: "registry example.com returns status 502"},
		"teapot":         {front: status(418), want: "registry example.com returns status 418"},
		"long command":   {image: "example.com/wide", want: "its ENTRYPOINT and CMD are longer than 32Ki"},
		"large config":   {image: "example.com/vast", want: "its registry sends more than 256Ki for it"},
		"to plain HTTP":  {front: redirect("http://metadata.internal/x"), want: unreachable("example.com").Error()},
		"to a loop":      {front: redirect("/v2/example/blobs/x"), want: errTooMany.Error()},
		"says nothing":   {front: func(http.ResponseWriter, *http.Request) bool { <-release; return true }, want: unreachable("example.com").Error()},
		"sends for ever": {front: endless, want: "its registry sends more than 256Ki for it"},
		"sends rubbish": {front: func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			fmt.Fprint(w, `{"manifests":[{}]}`)
			return true
		}, want: `registry example.com: cannot parse hash: ":"`},
	} {
		t.Run(name, func(t *testing.T) {
			s.front.Store(front(c.front))
			if c.image == "" {
				c.image = "example.com/train"
			}
			// The timeout of an admission, except for the one case that waits.
			within := Timeout
			if name == "says nothing" {
				within = 300 * time.Millisecond
			}
			eventually.Holds(t, c.want, func() (bool, any) { // a busy machine may sometimes take longer
				_, err := ask(New(Options{Transport: s.transport, Timeout: within}), c.image)
				return err != nil && err.Error() == c.want, err
			})
		})
	}
	s.front.Store(front(nil))
	s.transport = s.transport.Clone()
	s.transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	if _, err := ask(s.reader(), "example.com/train"); err == nil || err.Error() != unreachable("example.com").Error() {
		t.Error(err)
	}
}

// endless answers with a manifest that does not end.
func endless(w http.ResponseWriter, r *http.Request) bool {
	if !strings.Contains(r.URL.Path, "/manifests/") {
		return false
	}
	w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
	for chunk := []byte(strings.Repeat(" ", 64<<10)); ; {
		if _, err := w.Write(chunk); err != nil {
			return true
		}
	}
}

// TestPullSecrets: pull secrets are read if the controller has that right. Other Jobs cannot read images with them.
func TestPullSecrets(t *testing.T) {
	s := newStore(t)
	at := s.push(t, "example.com/private", image(t, []string{"python3"}, nil))
	s.front.Store(front(func(w http.ResponseWriter, r *http.Request) bool {
		user, word, _ := r.BasicAuth()
		if user == "u" && word == "p" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}))
	secret := func(namespace, name, user string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"example.com":{"auth":"` + base64.StdEncoding.EncodeToString([]byte(user+":p")) + `"}}}`)}}
	}
	account := func(namespace, name string, secrets ...string) *corev1.ServiceAccount {
		a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		for _, s := range secrets {
			a.ImagePullSecrets = append(a.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
		}
		return a
	}
	api := fake.NewClientset(secret("team", "good", "u"), secret("team", "bad", "v"), secret("other", "bad", "v"),
		account("team", "default", "good"), account("other", "default", "bad", "absent"), account("team", "poor"))
	r := New(Options{Transport: s.transport, Timeout: eventually.Timeout, PullSecrets: api})
	for _, c := range []struct {
		namespace, account string
		secrets            []string
		ok                 bool
	}{
		{"team", "default", nil, true}, {"team", "poor", []string{"good"}, true}, {"team", "default", []string{"bad"}, false},
		{"team", "poor", nil, false}, {"other", "default", nil, false}, {"third", "default", nil, false},
	} {
		for _, as := range []string{"example.com/private", at} {
			_, err := ask(r, as, func(q *webhook.ImageQuery) {
				q.Namespace, q.ServiceAccount, q.PullSecrets = c.namespace, c.account, c.secrets
			})
			if (err == nil) != c.ok || err != nil && err.Error() != "registry example.com rejects the credentials of the pull secrets" {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}

// TestPullSecretsThatCannotBeRead: if the registry requires credentials, the error says that the pull secrets could not be read.
func TestPullSecretsThatCannotBeRead(t *testing.T) {
	s := newStore(t)
	s.push(t, "example.com/open", image(t, []string{"a"}, nil))
	s.push(t, "example.com/private", image(t, []string{"a"}, nil))
	s.front.Store(front(func(w http.ResponseWriter, r *http.Request) bool {
		if private := strings.Contains(r.URL.Path, "/private"); private {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}))
	api := fake.NewClientset()
	api.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no right") })
	r := New(Options{Transport: s.transport, Timeout: eventually.Timeout, PullSecrets: api})
	if _, err := ask(r, "example.com/open"); err != nil {
		t.Errorf("an image that anybody may read: %v", err)
	}
	const want = "registry example.com requires credentials, and its pull secrets cannot be read: no right"
	if _, err := ask(r, "example.com/private"); err == nil || err.Error() != want {
		t.Error(err)
	}
}

// TestOneTenantHoldsUpItself: one namespace names registries that do not answer. That delays no other namespace, not even at the same
// registry.
func TestOneTenantHoldsUpItself(t *testing.T) {
	s := newStore(t)
	s.push(t, "example.com/train", image(t, []string{"a"}, nil))
	release, asked := make(chan struct{}), make(chan struct{}, 10*mostAtOnce)
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	s.front.Store(front(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/slow") {
			asked <- struct{}{}
			<-release
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	}))
	r := New(Options{Transport: s.transport, Timeout: 2 * eventually.Timeout}) // all reads wait until the registry answers
	of := func(namespace string) func(*webhook.ImageQuery) {
		return func(q *webhook.ImageQuery) { q.Namespace = namespace }
	}
	var wg sync.WaitGroup
	for i := range 2 * mostAtOnce {
		wg.Go(func() { _, _ = ask(r, fmt.Sprintf("example.com/slow%d", i), of("greedy")) })
	}
	eventually.Holds(t, "the registry to be asked", func() (bool, any) { return len(asked) > 0, nil })
	sharing := func(timeout time.Duration) *Reader {
		return &Reader{Options{Transport: s.transport, Timeout: timeout}, r.slots}
	}
	for _, namespace := range []string{"team", "other"} {
		if _, err := ask(sharing(eventually.Timeout/5), "example.com/train", of(namespace)); err != nil {
			t.Errorf("%s: %v", namespace, err)
		}
	}
	eventually.Holds(t, "the namespace to be refused", func() (bool, any) { // a busy machine may leave no time for that
		_, err := ask(sharing(300*time.Millisecond), "example.com/slow", of("greedy"))
		return err != nil && err.Error() == busy.Error(), err
	})
	if n := len(asked); n != mostOfNamespace {
		t.Errorf("the registry is asked for %d images at once", n)
	}
	let()
	wg.Wait()
	if !r.slots.all.TryAcquire(mostAtOnce) {
		t.Error("a slot is kept")
	}
}

func TestDialRefusesWhatIsNotForRegistries(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	dial := dialer([]string{"127.0.0.1:" + port, "localhost", "169.254.169.254:" + port})
	for host, refused := range map[string]bool{"127.0.0.1": false, "127.0.0.2": true, "localhost": true, "169.254.169.254": true, "::ffff:169.254.169.254": true, "fe80::1": true, "0.0.0.0": true} {
		conn, err := dial(context.Background(), "tcp", net.JoinHostPort(host, port))
		if conn != nil {
			_ = conn.Close()
		}
		if refused != (err != nil && strings.Contains(err.Error(), "which images are not read from")) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestPlainHTTPToNamedRegistriesAlone: a user who creates Jobs can name hosts inside the cluster. No answer reveals what is there.
func TestPlainHTTPToNamedRegistriesAlone(t *testing.T) {
	asked := atomic.Int64{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		inner.ServeHTTP(w, r)
	}))
	defer plain.Close()
	other := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is for example.com, and no client trusts it
	defer other.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	to := func(at net.Addr) *http.Transport {
		return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if at == nil {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			return (&net.Dialer{}).DialContext(ctx, network, at.String())
		}}
	}
	for _, host := range []string{"10.0.0.7:6443", "db.local:5432", "db.team.svc"} {
		for _, at := range []net.Addr{plain.Listener.Addr(), other.Listener.Addr(), silent.Addr(), nil} {
			r := New(Options{Transport: to(at), Timeout: time.Second})
			if _, err := ask(r, host+"/x:1"); err == nil || err.Error() != unreachable(host).Error() {
				t.Errorf("%s at %v: %v", host, at, err)
			}
		}
	}
	here := plain.Listener.Addr().String()
	for _, transport := range []*http.Transport{to(plain.Listener.Addr())} {
		if _, err := ask(New(Options{Transport: transport, Timeout: eventually.Timeout}), here+"/x:1"); err == nil ||
			err.Error() != unreachable(here).Error() {
			t.Error(err)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests over plain HTTP", n)
	}
	transport, err := NewTransport("", []string{here})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(here + "/x:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image(t, []string{"a"}, nil)); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(New(Options{Transport: transport, Timeout: eventually.Timeout, Insecure: []string{here}}), here+"/x:1"); err != nil ||
		got.Entrypoint[0] != "a" {
		t.Errorf("a registry that is named: %+v, %v", got, err)
	}
}

// TestEmptyObjects has answers that are small on the wire and large in memory.
func TestEmptyObjects(t *testing.T) {
	s := newStore(t)
	s.push(t, "example.com/train", image(t, []string{"a"}, nil))
	for _, list := range []string{`{"manifests":[%s{}]}`, `{"schemaVersion":2,"layers":[%s{}]}`} {
		body := fmt.Sprintf(list, strings.Repeat("{},", mostBytes/4))
		s.front.Store(front(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			fmt.Fprint(w, body)
			return true
		}))
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		if _, err := ask(s.reader(), "example.com/train"); err == nil {
			t.Error("read")
		}
		goruntime.ReadMemStats(&after)
		if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 100 {
			t.Errorf("one reading took %d MiB", grown)
		} else {
			t.Logf("%d MiB", grown)
		}
	}
}
