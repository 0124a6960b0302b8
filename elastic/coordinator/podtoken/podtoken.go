// Package podtoken determines the pod in which an agent runs. The API server reviews the service account token that the agent sends, and
// the package reads the pod object that the review names. The package ignores other statements of the agent about its identity.
package podtoken

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/internal/settings"
)

const (
	// reviewKept is how long a successful review is valid; refusals are valid for refusalKept.
	reviewKept, refusalKept = time.Minute, 5 * time.Second
	// reviewsKept and refusalsKept bound the two caches separately: bad tokens do not evict good ones.
	reviewsKept, refusalsKept = 1 << 15, 1 << 12
	// reviewTime bounds one query to the API server.
	reviewTime = 5 * time.Second
	// unknownPerSecond and unknownBurst limit the reviews of tokens whose pod is not in the cache.
	unknownPerSecond, unknownBurst = 20, 100
)

// Fields of a bound service account token that identify its pod.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
	userPrefix   = "system:serviceaccount:"
)

// Verifier proves which pod a caller is; it implements coordinator.Callers.
type Verifier struct {
	client client.Client
	live   client.Reader
	now    func() time.Time

	reviews, refusals *lru.Cache         // by the token's digest
	asking            singleflight.Group // by the same key: a token is reviewed once at a time
	peers             *coordinator.PerSource
	unknown           *rate.Limiter
}

// review is the API server's result for a token.
type review struct {
	pod   types.NamespacedName
	uid   types.UID
	err   error
	until time.Time
}

// New returns a Verifier. The client creates TokenReviews and reads pods from the manager's cache; live reads pods that the cache lacks
// from the API server.
func New(c client.Client, live client.Reader) *Verifier {
	return &Verifier{client: c, live: live, now: time.Now, reviews: lru.New(reviewsKept), refusals: lru.New(refusalsKept),
		peers: coordinator.NewPerSource(), unknown: rate.NewLimiter(unknownPerSecond, unknownBurst)}
}

// Identify returns the caller of an RPC, or why it is rejected.
func (v *Verifier) Identify(ctx context.Context) (coordinator.Caller, error) {
	token, err := bearer(ctx)
	if err != nil {
		return coordinator.Caller{}, err
	}
	digest := sha256.Sum256([]byte(token))
	if r, ok := v.refusals.Get(digest); ok && v.now().Before(r.(review).until) {
		return coordinator.Caller{}, r.(review).err
	}
	r := v.review(ctx, token, digest)
	if r.err != nil {
		return coordinator.Caller{}, r.err
	}
	c, err := v.identify(ctx, r.pod, r.uid)
	if status.Code(err) == codes.PermissionDenied { // the API server refused its pod, which the cache may never have
		v.refusals.Add(digest, review{err: err, until: v.now().Add(refusalKept)})
	}
	return c, err
}

// errReplaced: the pod is no longer a member.
var errReplaced = status.Error(codes.NotFound, "the pod was released from its job: another pod replaces it")

// Check returns whether the caller's identity still holds, and the pod's addresses. A replaced pod may send its last reports on its
// open stream; it gets no new one.
func (v *Verifier) Check(ctx context.Context, c coordinator.Caller) ([]string, error) {
	now, err := v.identify(ctx, types.NamespacedName{Namespace: c.Key.Namespace, Name: c.Pod.Name}, types.UID(c.Pod.UID))
	switch {
	case errors.Is(err, errReplaced):
		return nil, nil
	case status.Code(err) == codes.Unavailable:
		return nil, nil // the API server is unavailable: training goes on
	case err != nil:
		return nil, err
	case now.Key != c.Key || now.Slot != c.Slot:
		return nil, status.Errorf(codes.PermissionDenied, "pod %s has moved to another gang or slot", c.Pod.Name)
	}
	return now.Addresses, nil
}

func bearer(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 || !strings.HasPrefix(values[0], "Bearer ") {
		return "", status.Error(codes.Unauthenticated, `no token: metadata "authorization: Bearer ..." must be set`)
	}
	if len(values[0]) > maxToken {
		return "", errNoToken // not parsed
	}
	return strings.TrimSpace(strings.TrimPrefix(values[0], "Bearer ")), nil
}

// review returns the API server's result for a token, from the cache or new. review sends no token that cannot be valid, and limits the
// rate.
func (v *Verifier) review(ctx context.Context, token string, digest [sha256.Size]byte) review {
	if r, ok := v.reviews.Get(digest); ok && v.now().Before(r.(review).until) {
		return r.(review)
	}
	claimed, err := unverified(token, v.now())
	if err == nil {
		err = v.afford(ctx, claimed)
	}
	if err != nil {
		return review{err: err}
	}
	answer := v.asking.DoChan(string(digest[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTime)
		defer cancel()
		return v.keep(digest, v.ask(ctx, token)), nil
	})
	select {
	case r := <-answer:
		return r.Val.(review)
	case <-ctx.Done():
		return review{err: status.FromContextError(ctx.Err()).Err()}
	}
}

// keep caches a review.
func (v *Verifier) keep(digest [sha256.Size]byte, r review) review {
	switch {
	case r.err == nil:
		r.until = v.now().Add(reviewKept)
		v.reviews.Add(digest, r)
	case status.Code(r.err) != codes.Unavailable: // UNAVAILABLE says nothing about the token
		r.until = v.now().Add(refusalKept)
		v.refusals.Add(digest, r)
	}
	return r
}

// afford returns why a token is not reviewed now; nil: it is.
func (v *Verifier) afford(ctx context.Context, c claims) error {
	if p, ok := peer.FromContext(ctx); ok && !v.peers.Take(coordinator.Source(p.Addr)) {
		return status.Errorf(codes.ResourceExhausted, "%s sends too many new tokens: try again", coordinator.Source(p.Addr))
	}
	pod := &corev1.Pod{}
	name := types.NamespacedName{Namespace: c.Kubernetes.Namespace, Name: c.Kubernetes.Pod.Name}
	if err := v.client.Get(ctx, name, pod); err == nil && pod.UID == c.Kubernetes.Pod.UID {
		return nil
	}
	if !v.unknown.Allow() { // the cache may be behind, or such tokens may be forged
		return status.Error(codes.ResourceExhausted, "too many tokens of unknown pods: try again")
	}
	return nil
}

// ask queries the API server for a review of a token.
func (v *Verifier) ask(ctx context.Context, token string) review {
	tr := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{v1alpha1.TokenAudience}}}
	if err := v.client.Create(ctx, tr); err != nil {
		return review{err: status.Errorf(codes.Unavailable, "reviewing the token: %v", err)}
	}
	st := &tr.Status
	switch {
	case !st.Authenticated:
		return review{err: status.Error(codes.Unauthenticated, "the API server rejects this token: "+st.Error)}
	case !slices.Contains(st.Audiences, v1alpha1.TokenAudience):
		return review{err: status.Errorf(codes.Unauthenticated, "the token is not for audience %s", v1alpha1.TokenAudience)}
	}
	namespace, _, ok := strings.Cut(strings.TrimPrefix(st.User.Username, userPrefix), ":")
	name, uid := only(st.User.Extra[extraPodName]), only(st.User.Extra[extraPodUID])
	if !ok || !strings.HasPrefix(st.User.Username, userPrefix) || name == "" || uid == "" {
		return review{err: status.Error(codes.PermissionDenied, "the token is not bound to a pod: use a projected service account token")}
	}
	return review{pod: types.NamespacedName{Namespace: namespace, Name: name}, uid: types.UID(uid)}
}

// only returns a single value; "": there is none, or several.
func only(values authenticationv1.ExtraValue) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// identify reads the pod and returns its gang and slot.
func (v *Verifier) identify(ctx context.Context, name types.NamespacedName, uid types.UID) (coordinator.Caller, error) {
	pod := &corev1.Pod{}
	err := v.client.Get(ctx, name, pod)
	if err != nil || pod.UID != uid { // the cache may be behind
		err = v.live.Get(ctx, name, pod)
	}
	switch {
	case apierrors.IsNotFound(err):
		return coordinator.Caller{}, status.Errorf(codes.PermissionDenied, "there is no pod %s", name)
	case err != nil:
		return coordinator.Caller{}, status.Errorf(codes.Unavailable, "reading pod %s: %v", name, err)
	case pod.UID != uid:
		return coordinator.Caller{}, status.Errorf(codes.PermissionDenied, "pod %s is not the pod that the token was issued for", name)
	}
	if membership.Replaced(pod) {
		return coordinator.Caller{}, errReplaced
	}
	gangName, ok := membership.GangOf(pod)
	job := membership.JobUID(pod)
	slot, indexed := membership.GangSlot(pod)
	switch {
	case membership.Orphaned(pod):
		return coordinator.Caller{}, status.Errorf(codes.PermissionDenied, "pod %s has no job any more (deleted with --cascade=orphan): its ranks continue, and nothing restarts them", name)
	case !ok:
		return coordinator.Caller{}, status.Errorf(codes.PermissionDenied, "pod %s belongs to no gang: its job was not opted in when it was created", name)
	case job == "" || !indexed:
		return coordinator.Caller{}, status.Errorf(codes.PermissionDenied, "pod %s is labelled with gang %s but was not made through the webhook: create the job again", name, gangName.Name)
	}
	id := coordinator.Caller{
		Key: coordinator.Key{Namespace: gangName.Namespace, Name: gangName.Name, Job: string(job)}, Slot: elastic.Slot(slot),
		Pod: elastic.Pod{UID: string(pod.UID), Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.Time,
			Devices: settings.DevicesOf(&pod.Spec), Restarted: containerEnd(pod), Charged: charged(pod)},
	}
	for _, ip := range pod.Status.PodIPs {
		id.Addresses = append(id.Addresses, ip.IP)
	}
	return id, nil
}
