package podtoken

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/membership"
)

func pod(namespace, job string, slot string, uid string) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: job + "-" + slot, UID: types.UID(uid), CreationTimestamp: metav1.Now(),
			Labels:          map[string]string{v1alpha1.LabelGang: job, batchv1.JobCompletionIndexAnnotation: slot},
			Annotations:     map[string]string{v1alpha1.AnnotationGangSlot: slot},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: types.UID(namespace + "-" + job), Controller: &yes}}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{
			{Name: "train", Env: []corev1.EnvVar{{Name: membership.JobVariable, Value: namespace + "-" + job}}}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
	}
}

// token returns a token like those of the API server, without a valid signature.
func token(namespace, name, uid, audience string) string {
	claims := fmt.Sprintf(`{"aud":[%q],"exp":%d,"kubernetes.io":{"namespace":%q,"pod":{"name":%q,"uid":%q}}}`, audience, time.Now().Add(time.Hour).Unix(), namespace, name, uid)
	return "header." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature"
}

func ours(namespace, name, uid string) string {
	return token(namespace, name, uid, v1alpha1.TokenAudience)
}

// reviewer is an API server that reviews tokens.
type reviewer struct {
	mu      sync.Mutex
	tokens  map[string]authenticationv1.TokenReviewStatus // guarded by mu
	reviews int                                           // guarded by mu
	// asked, if set, is called with each review.
	asked func(context.Context) error
}

func (r *reviewer) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reviews
}

func (r *reviewer) client(t *testing.T, objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			tr := o.(*authenticationv1.TokenReview)
			if len(tr.Spec.Audiences) != 1 || tr.Spec.Audiences[0] != v1alpha1.TokenAudience {
				t.Errorf("a token is reviewed for audiences %v", tr.Spec.Audiences)
			}
			r.mu.Lock()
			r.reviews++
			r.mu.Unlock()
			if r.asked != nil {
				if err := r.asked(ctx); err != nil {
					return err
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			tr.Status = r.tokens[tr.Spec.Token]
			return nil
		},
	}).Build()
}

// showing returns the context of an RPC that carries a token.
func showing(t *testing.T, token string) context.Context {
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token))
}

func bound(namespace, name, uid string) authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true,
		Audiences:     []string{v1alpha1.TokenAudience},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:" + namespace + ":default",
			Extra:    map[string]authenticationv1.ExtraValue{extraPodName: {name}, extraPodUID: {uid}},
		},
	}
}

func TestWhoIsWho(t *testing.T) {
	mine := pod("team-a", "train", "3", "a3")
	plain := pod("team-a", "plain", "0", "p0")
	delete(plain.Labels, v1alpha1.LabelGang)
	forged := pod("team-a", "forged", "0", "f0")
	// A pod with all fields that the Job controller writes and the gang's label, but without what only pod admission writes.
	forged.Labels[v1alpha1.LabelGang], forged.OwnerReferences, forged.Spec.Containers = "train", mine.OwnerReferences, nil
	unplaced := pod("team-a", "unplaced", "0", "l0")
	delete(unplaced.Annotations, v1alpha1.AnnotationGangSlot)
	replaced := pod("team-a", "train", "1", "a1")
	replaced.Labels[v1alpha1.LabelReplaced] = "true"
	wrong, node := bound("team-a", "train-3", "a3"), bound("team-a", "train-3", "a3")
	wrong.Audiences = []string{"kubernetes"}
	node.User.Username = "system:node:n1"
	tokens := map[string]string{"mine": ours("team-a", "train-3", "a3"), "wrong": ours("team-a", "train-3", "a3") + "w", "unbound": ours("team-a", "train-3", "a3") + "u",
		"node": ours("team-a", "train-3", "a3") + "n", "stolen": ours("team-a", "train-3", "a-pod-that-is-gone"), "elsewhere": ours("team-b", "train-3", "a3"),
		"plain": ours("team-a", "plain-0", "p0"), "forged": ours("team-a", "forged-0", "f0"), "unplaced": ours("team-a", "unplaced-0", "l0"), "replaced": ours("team-a", "train-1", "a1"), "who": ours("team-a", "train-3", "a3") + "x"}
	r := &reviewer{tokens: map[string]authenticationv1.TokenReviewStatus{
		tokens["mine"]: bound("team-a", "train-3", "a3"), tokens["wrong"]: wrong, tokens["unbound"]: bound("team-a", "", ""), tokens["node"]: node,
		tokens["stolen"]: bound("team-a", "train-3", "a-pod-that-is-gone"), tokens["elsewhere"]: bound("team-b", "train-3", "a3"),
		tokens["plain"]: bound("team-a", "plain-0", "p0"), tokens["forged"]: bound("team-a", "forged-0", "f0"), tokens["unplaced"]: bound("team-a", "unplaced-0", "l0"), tokens["replaced"]: bound("team-a", "train-1", "a1"),
	}}
	api := r.client(t, mine, plain, forged, unplaced, replaced)
	v := New(api, api)
	for name, c := range map[string]struct {
		token string
		want  codes.Code
	}{
		"a pod of the gang":                {"mine", codes.OK},
		"a token nobody knows":             {"who", codes.Unauthenticated},
		"a token for another audience":     {"wrong", codes.Unauthenticated},
		"a token bound to no pod":          {"unbound", codes.PermissionDenied},
		"a token that is not of a pod":     {"node", codes.PermissionDenied},
		"a token of the pod's predecessor": {"stolen", codes.PermissionDenied},
		"a pod name in another namespace":  {"elsewhere", codes.PermissionDenied},
		"a pod whose job is not opted in":  {"plain", codes.PermissionDenied},
		"a pod that was made for no job":   {"forged", codes.PermissionDenied},
		"a pod without a slot":             {"unplaced", codes.PermissionDenied},
		"a pod that was replaced":          {"replaced", codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := v.Identify(showing(t, tokens[c.token]))
			if status.Code(err) != c.want {
				t.Fatalf("refused with %v, want %v", err, c.want)
			}
			if err == nil && (got.Key != coordinator.Key{Namespace: "team-a", Name: "train", Job: "team-a-train"} || got.Slot != 3 ||
				got.Pod.UID != "a3" || got.Pod.Name != "train-3" || got.Pod.Node != "n1" || len(got.Addresses) != 1) {
				t.Errorf("the caller is %+v", got)
			}
		})
	}
	if _, err := v.Identify(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a caller without a token is refused with %v", err)
	}
}

// TestAReplacedPodKeepsItsStream: a replaced pod may still send its last reports. A pod that changed in another way may not.
func TestAReplacedPodKeepsItsStream(t *testing.T) {
	member := pod("team-a", "train", "0", "a0")
	api := fake.NewClientBuilder().WithObjects(member).Build()
	v := New(api, api)
	caller := coordinator.Caller{
		Key: coordinator.Key{Namespace: "team-a", Name: "train", Job: "team-a-train"},
		Pod: elastic.Pod{UID: string(member.UID), Name: member.Name},
	}
	if addresses, err := v.Check(t.Context(), caller); err != nil || len(addresses) != 1 || addresses[0] != "10.0.0.1" {
		t.Fatalf("a member is refused, or its address not known: %v, %v", addresses, err)
	}
	member.Labels[v1alpha1.LabelReplaced] = "true"
	member.OwnerReferences = nil // the pod was released from its Job
	if err := api.Update(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Check(t.Context(), caller); err != nil {
		t.Errorf("the stream of a replaced pod ends: %v", err)
	}
	delete(member.Labels, v1alpha1.LabelReplaced)
	if err := api.Update(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Check(t.Context(), caller); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a pod without a job goes on: %v", err)
	}
}

// from returns the context of an RPC that comes from an address.
func from(ctx context.Context, address string) context.Context {
	return peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 4000}})
}

// TestTokensThatNobodyIsAskedAbout: an invalid token causes no request to the API server.
func TestTokensThatNobodyIsAskedAbout(t *testing.T) {
	r := &reviewer{}
	api := r.client(t)
	v := New(api, api)
	late := New(api, api)
	late.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	for name, c := range map[string]struct {
		v     *Verifier
		token string
		want  codes.Code
	}{
		"nothing":                 {v, "", codes.Unauthenticated},
		"another text":            {v, "token-of-mine", codes.Unauthenticated},
		"three parts":             {v, "a.b.c", codes.Unauthenticated},
		"no JSON":                 {v, "a." + base64.RawURLEncoding.EncodeToString([]byte("{")) + ".c", codes.Unauthenticated},
		"another audience":        {v, token("team-a", "train-0", "a0", "kubernetes"), codes.Unauthenticated},
		"bound to no pod":         {v, ours("team-a", "", ""), codes.PermissionDenied},
		"one that has expired":    {late, ours("team-a", "train-0", "a0"), codes.Unauthenticated},
		"more than a token holds": {v, ours("team-a", "train-0", strings.Repeat("a", maxToken)), codes.Unauthenticated},
	} {
		if _, err := c.v.Identify(showing(t, c.token)); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if n := r.count(); n != 0 {
		t.Errorf("the API server was asked %d times", n)
	}
}

// TestATokenIsReviewedOnce: a token is reviewed once, also if many calls carry it at the same moment.
func TestATokenIsReviewedOnce(t *testing.T) {
	mine, let := ours("team-a", "train-0", "a0"), make(chan struct{})
	r := &reviewer{tokens: map[string]authenticationv1.TokenReviewStatus{mine: bound("team-a", "train-0", "a0")},
		asked: func(context.Context) error { <-let; return nil }}
	api := r.client(t, pod("team-a", "train", "0", "a0"))
	v := New(api, api)
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		let = make(chan struct{})
		for range 50 {
			all.Go(func() {
				if _, err := v.Identify(showing(t, mine)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(let)
		all.Wait()
	})
	if n := r.count(); n != 1 {
		t.Errorf("%d reviews", n)
	}
}

// TestFloodsOfTokens: a client that sends one new token after the other, from one address or from many, does not affect a known pod.
func TestFloodsOfTokens(t *testing.T) {
	mine := ours("team-a", "train-0", "a0")
	r := &reviewer{tokens: map[string]authenticationv1.TokenReviewStatus{mine: bound("team-a", "train-0", "a0")}}
	api := r.client(t, pod("team-a", "train", "0", "a0"))
	v := New(api, api)
	known := func() {
		t.Helper()
		before := r.count()
		if _, err := v.Identify(from(showing(t, mine), "10.0.0.1")); err != nil || r.count() > before+1 {
			t.Errorf("a known pod: %v, %d reviews", err, r.count()-before)
		}
	}
	began := time.Now()
	refilled := func(perSecond float64) int { return int(perSecond*time.Since(began).Seconds()) + 1 }
	for i := range 500 {
		_, _ = v.Identify(from(showing(t, ours("team-a", "train-0", "a0")+fmt.Sprint(i)), "10.0.0.9"))
	}
	if n := r.count(); n > coordinator.SourceBurst+refilled(coordinator.SourcePerSecond) {
		t.Errorf("one address had %d tokens reviewed", n)
	}
	known()
	before := r.count()
	began = time.Now()
	for i := range 500 {
		_, _ = v.Identify(from(showing(t, ours("team-x", "p", fmt.Sprint(i))), fmt.Sprintf("10.1.%d.%d", i/200, i%200)))
	}
	if n := r.count() - before; n > unknownBurst+refilled(unknownPerSecond) {
		t.Errorf("%d tokens of pods that nobody knows were reviewed", n)
	}
	v.reviews.Clear() // otherwise the verifier would know it by its token
	known()
}

// TestAgentsBehindOneAddress: a restarted coordinator reviews the tokens of all agents that may connect at once behind one address.
func TestAgentsBehindOneAddress(t *testing.T) {
	r := &reviewer{tokens: map[string]authenticationv1.TokenReviewStatus{}}
	var pods []client.Object
	const agents = coordinator.SourceBurst + 10*coordinator.SourcePerSecond
	for i := range agents {
		pods = append(pods, pod("team-a", "train", fmt.Sprint(i), fmt.Sprint("a", i)))
	}
	api := r.client(t, pods...)
	synctest.Test(t, func(t *testing.T) {
		v := New(api, api)
		for i := range agents {
			if i >= coordinator.SourceBurst {
				time.Sleep(time.Second / coordinator.SourcePerSecond) // at the rate at which connections are accepted
			}
			shown := ours("team-a", fmt.Sprint("train-", i), fmt.Sprint("a", i))
			r.mu.Lock()
			r.tokens[shown] = bound("team-a", fmt.Sprint("train-", i), fmt.Sprint("a", i))
			r.mu.Unlock()
			if _, err := v.Identify(from(showing(t, shown), "10.0.0.9")); err != nil {
				t.Fatalf("agent %d of %d behind one address: %v", i, agents, err)
			}
		}
	})
}

// TestAPodOfNoGangIsReadOnce: the cache never contains such a pod. Its token must not cause one read from the API server after the other.
func TestAPodOfNoGangIsReadOnce(t *testing.T) {
	stranger := pod("team-b", "web", "0", "b0")
	stranger.Labels = nil
	shown := ours("team-b", stranger.Name, "b0")
	r := &reviewer{tokens: map[string]authenticationv1.TokenReviewStatus{shown: bound("team-b", stranger.Name, "b0")}}
	reads := 0
	live := fake.NewClientBuilder().WithObjects(stranger).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, more ...client.GetOption) error {
			reads++
			return c.Get(ctx, k, o, more...)
		},
	}).Build()
	v := New(r.client(t), live)
	for range 50 {
		if _, err := v.Identify(from(showing(t, shown), "10.0.0.9")); status.Code(err) != codes.PermissionDenied {
			t.Fatal(err)
		}
	}
	if reads != 1 {
		t.Errorf("read %d times", reads)
	}
}

// TestAHeaderOfDots: a header that consists of dots is refused before it is parsed.
func TestAHeaderOfDots(t *testing.T) {
	v := New(nil, nil)
	ctx := showing(t, strings.Repeat(".", 4<<20))
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.Identify(ctx); status.Code(err) != codes.Unauthenticated {
				b.Fatal(err)
			}
		}
	})
	if n := cost.AllocedBytesPerOp(); n > maxToken {
		t.Errorf("%d bytes are taken for it", n)
	}
}

// TestAReviewThatHangs ends.
func TestAReviewThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reviewer{asked: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		api := r.client(t)
		began := time.Now()
		if _, err := New(api, api).Identify(showing(t, ours("team-a", "train-0", "a0"))); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		if took := time.Since(began); took > reviewTime {
			t.Errorf("it took %s", took)
		}
	})
}
