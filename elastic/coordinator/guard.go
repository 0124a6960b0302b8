package coordinator

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/internal/membership"
)

const (
	// reviewKept is how long a good review is trusted without asking again; refusals are kept shorter.
	reviewKept, refusalKept = time.Minute, 5 * time.Second
	// reviewsKept bounds the memory of reviews.
	reviewsKept = 4096
)

// What a bound service account token says of its pod.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
	userPrefix   = "system:serviceaccount:"
)

// identity is who an agent is: all of it follows from its token and from the pod as the API server knows it.
type identity struct {
	key       Key
	slot      elastic.Slot
	pod       elastic.Pod
	addresses []string
}

// guard proves which pod a caller is.
type guard struct {
	client client.Client
	live   client.Reader
	now    func() time.Time

	mu      sync.Mutex
	reviews map[[sha256.Size]byte]review // guarded by mu; keyed by the token's digest
}

// review is what the API server said of a token.
type review struct {
	pod   types.NamespacedName
	uid   types.UID
	err   error
	until time.Time
}

func newGuard(c client.Client, live client.Reader) *guard {
	return &guard{client: c, live: live, now: time.Now, reviews: map[[sha256.Size]byte]review{}}
}

// admit answers who the caller of an RPC is, or why it is nobody.
func (g *guard) admit(ctx context.Context) (identity, error) {
	token, err := bearer(ctx)
	if err != nil {
		return identity{}, err
	}
	r := g.review(ctx, token)
	if r.err != nil {
		return identity{}, r.err
	}
	return g.identify(ctx, r.pod, r.uid)
}

// errReplaced: the pod is a member no more. errOver: there is no gang any more. The code tells agents that nothing depends on their
// pod's end, so that none waits for the order to exit.
var errReplaced = status.Error(codes.NotFound, "the pod was taken out of its gang: another one takes its place")
var errOver = status.Error(codes.NotFound, "the Job is over, and its gang with it")

// still answers whether an identity holds yet. A pod that was replaced may tell its last words on the
// stream that it has, until that ends; it gets no new one.
func (g *guard) still(ctx context.Context, peer identity) error {
	now, err := g.identify(ctx, types.NamespacedName{Namespace: peer.key.Namespace, Name: peer.pod.Name}, types.UID(peer.pod.UID))
	switch {
	case errors.Is(err, errReplaced):
		return nil
	case status.Code(err) == codes.Unavailable:
		return nil // the API server is away: training goes on
	case err != nil:
		return err
	case now.key != peer.key || now.slot != peer.slot:
		return status.Errorf(codes.PermissionDenied, "pod %s has moved to another gang or slot", peer.pod.Name)
	}
	return nil
}

func bearer(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 || !strings.HasPrefix(values[0], "Bearer ") {
		return "", status.Error(codes.Unauthenticated, `no token: metadata "authorization: Bearer ..." is needed`)
	}
	return strings.TrimSpace(strings.TrimPrefix(values[0], "Bearer ")), nil
}

func (g *guard) review(ctx context.Context, token string) review {
	digest := sha256.Sum256([]byte(token))
	g.mu.Lock()
	r, ok := g.reviews[digest]
	g.mu.Unlock()
	if ok && g.now().Before(r.until) {
		return r
	}
	r = g.ask(ctx, token)
	if status.Code(r.err) == codes.Unavailable {
		return r // says nothing about the token
	}
	kept := reviewKept
	if r.err != nil {
		kept = refusalKept
	}
	r.until = g.now().Add(kept)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.reviews) >= reviewsKept {
		g.reviews = map[[sha256.Size]byte]review{}
	}
	g.reviews[digest] = r
	return r
}

// ask has the API server review a token.
func (g *guard) ask(ctx context.Context, token string) review {
	tr := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{v1alpha1.TokenAudience}}}
	if err := g.client.Create(ctx, tr); err != nil {
		return review{err: status.Errorf(codes.Unavailable, "reviewing the token: %v", err)}
	}
	st := &tr.Status
	meant := false
	for _, a := range st.Audiences {
		meant = meant || a == v1alpha1.TokenAudience
	}
	switch {
	case !st.Authenticated:
		return review{err: status.Error(codes.Unauthenticated, "the API server does not know this token: "+st.Error)}
	case !meant:
		return review{err: status.Errorf(codes.Unauthenticated, "the token is not meant for audience %s", v1alpha1.TokenAudience)}
	}
	namespace, _, ok := strings.Cut(strings.TrimPrefix(st.User.Username, userPrefix), ":")
	name, uid := first(st.User.Extra[extraPodName]), first(st.User.Extra[extraPodUID])
	if !ok || !strings.HasPrefix(st.User.Username, userPrefix) || name == "" || uid == "" {
		return review{err: status.Error(codes.PermissionDenied, "the token is not bound to a pod: a projected service account token is needed")}
	}
	return review{pod: types.NamespacedName{Namespace: namespace, Name: name}, uid: types.UID(uid)}
}

func first(values authenticationv1.ExtraValue) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// identify looks the pod up and answers which gang and slot it is in.
func (g *guard) identify(ctx context.Context, name types.NamespacedName, uid types.UID) (identity, error) {
	pod := &corev1.Pod{}
	err := g.client.Get(ctx, name, pod)
	if err != nil || pod.UID != uid { // the cache may be behind
		err = g.live.Get(ctx, name, pod)
	}
	switch {
	case apierrors.IsNotFound(err):
		return identity{}, status.Errorf(codes.PermissionDenied, "there is no pod %s", name)
	case err != nil:
		return identity{}, status.Errorf(codes.Unavailable, "reading pod %s: %v", name, err)
	case pod.UID != uid:
		return identity{}, status.Errorf(codes.PermissionDenied, "pod %s is another one than the token was made for", name)
	}
	if membership.Replaced(pod) {
		return identity{}, errReplaced
	}
	gangName, ok := membership.GangOf(pod)
	job := membership.OwningJob(pod)
	slot, indexed := membership.GangSlot(pod)
	switch {
	case !ok:
		return identity{}, status.Errorf(codes.PermissionDenied, "pod %s is in no gang: its job was not opted in when it was created", name)
	case job == nil || job.Name != gangName.Name:
		return identity{}, status.Errorf(codes.PermissionDenied, "pod %s is labelled with gang %s but is not a pod of that job", name, gangName.Name)
	case !indexed:
		return identity{}, status.Errorf(codes.PermissionDenied, "pod %s has no completion index: the job must be an Indexed one", name)
	}
	id := identity{
		key: Key{Namespace: gangName.Namespace, Name: gangName.Name, Job: string(job.UID)}, slot: elastic.Slot(slot),
		pod: elastic.Pod{UID: string(pod.UID), Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.Time,
			Restarted: containerEnd(pod), Charged: charged(pod)},
	}
	for _, ip := range pod.Status.PodIPs {
		id.addresses = append(id.addresses, ip.IP)
	}
	return id, nil
}
