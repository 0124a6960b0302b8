// Package ask serves previews and the state of the fabric over HTTPS. The handler authenticates and authorizes the
// caller, passes the query to the scheduler and writes the response.
//
// The proxy of the API server removes the header Authorization, so callers send their token in a header of its own. The
// token's only audience is this service, so that it is of no use elsewhere. The API server reviews the token
// (TokenReview) and the rights of its account (SubjectAccessReview: post on v1alpha1.PreviewPath, get on
// v1alpha1.FabricPath).
package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const (
	// timeout bounds how long a query waits for the scheduler, and how long writing a response takes.
	timeout = 30 * time.Second
	// maxBytes bounds a query's body, allBytes the bodies that are read at a time, readTime the time to read one.
	maxBytes, allBytes = 64 << 20, 128 << 20
	readTime           = 10 * time.Second
	// fabricMoves is the number of domains per level in a response to a query without the parameter most.
	fabricMoves = "3"
	// remembered is how long a review of a token or a right by the API server is valid.
	remembered = 10 * time.Second
)

var audiences = authenticator.Audiences{v1alpha1.PreviewAudience}

// Scheduler answers queries.
type Scheduler interface {
	Preview(context.Context, []*corev1.Pod) (v1alpha1.PreviewResponse, error)
	// Fabric returns how fragmented the fabric is, and which moves would free domains, at most that many per level.
	Fabric(ctx context.Context, level string, most int) (v1alpha1.FabricResponse, error)
}

// Fault is an error that the caller caused, as HTTP status code and reason.
type Fault struct {
	Code   int
	Reason metav1.StatusReason
}

// Handler serves v1alpha1.PreviewPath and v1alpha1.FabricPath.
type Handler struct {
	Scheduler Scheduler
	// Fault translates an error of the scheduler; ok is false if the caller did not cause it.
	Fault         func(error) (f Fault, ok bool)
	Authenticator authenticator.Request
	Authorizer    authorizer.UnconditionalAuthorizer

	begin sync.Once
	// bodies limits the bytes of queries that are being read, turn is held by the query that is being answered: a client that sends slowly
	// delays no other one.
	bodies, turn *semaphore.Weighted
}

// Delegate returns an authenticator and an authorizer that query the API server.
func Delegate(client kubernetes.Interface) (authenticator.Request, authorizer.Authorizer, error) {
	authn, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: client.AuthenticationV1(), TokenAccessReviewTimeout: timeout,
		WebhookRetryBackoff: options.DefaultAuthWebhookRetryBackoff(), CacheTTL: remembered,
		APIAudiences: audiences,
	}.New()
	if err != nil {
		return nil, nil, fmt.Errorf("making an authenticator: %w", err)
	}
	authz, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(), AllowCacheTTL: remembered, DenyCacheTTL: remembered,
		WebhookRetryBackoff: options.DefaultAuthWebhookRetryBackoff(),
	}.New()
	if err != nil {
		return nil, nil, fmt.Errorf("creating an authorizer: %w", err)
	}
	return authn, authz, nil
}

// ServeHTTP answers one query.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	verb := map[string]string{v1alpha1.PreviewPath: http.MethodPost, v1alpha1.FabricPath: http.MethodGet}[r.URL.Path]
	switch {
	case verb == "":
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("only %s and %s are served here", v1alpha1.PreviewPath, v1alpha1.FabricPath))
		return
	case verb != r.Method:
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.URL.Path+" must be requested with "+verb)
		return
	case !h.admit(ctx, w, r):
		return
	}
	h.begin.Do(func() { h.bodies, h.turn = semaphore.NewWeighted(allBytes), semaphore.NewWeighted(1) })
	body, free, err := h.read(ctx, w, r)
	defer free()
	if err == nil {
		err = h.turn.Acquire(ctx, 1)
	}
	if ctx.Err() != nil {
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "too many requests: try again")
		return
	}
	var answer any
	if err == nil {
		defer h.turn.Release(1)
		answer, err = h.ask(ctx, r, body)
	}
	var bad badQuestion
	switch {
	case errors.As(err, &bad):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case err != nil:
		if fault, ok := h.Fault(err); ok {
			refuse(w, fault.Code, fault.Reason, err.Error())
			return
		}
		klog.FromContext(ctx).Error(err, "Answering", "path", r.URL.Path)
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
	default:
		write(w, http.StatusOK, answer)
	}
}

// badQuestion is an error in the query's body.
type badQuestion struct{ error }

// read returns the body of a POST query; free releases its memory budget.
func (h *Handler) read(ctx context.Context, w http.ResponseWriter, r *http.Request) (body []byte, free func(), err error) {
	if r.Method != http.MethodPost {
		return nil, func() {}, nil
	}
	size := r.ContentLength
	if size < 0 {
		size = maxBytes
	}
	if size > maxBytes {
		return nil, func() {}, badQuestion{fmt.Errorf("reading the query: %d bytes, %d at most", size, maxBytes)}
	}
	if err := h.bodies.Acquire(ctx, size); err != nil {
		return nil, func() {}, err
	}
	free = func() { h.bodies.Release(size) }
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime)) // a recorder in a test has none
	if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, size)); err != nil {
		err = badQuestion{fmt.Errorf("reading the query: %w", err)}
	}
	return body, free, err
}

// ask passes the query to the scheduler.
func (h *Handler) ask(ctx context.Context, r *http.Request, body []byte) (any, error) {
	if r.URL.Path == v1alpha1.FabricPath {
		most, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("most"), fabricMoves))
		if err != nil || most < 0 || most > v1alpha1.MaxFabricMoves {
			return nil, badQuestion{fmt.Errorf("most: %q is no number from 0 to %d", r.URL.Query().Get("most"), v1alpha1.MaxFabricMoves)}
		}
		return h.Scheduler.Fabric(ctx, r.URL.Query().Get("level"), most)
	}
	pods, err := question(body)
	if err != nil {
		return nil, badQuestion{err}
	}
	return h.Scheduler.Preview(ctx, pods)
}

// admit reports whether the caller may query. If not, admit has written the response.
func (h *Handler) admit(ctx context.Context, w http.ResponseWriter, r *http.Request) bool {
	token := r.Header.Get(v1alpha1.PreviewTokenHeader)
	if token == "" {
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, fmt.Sprintf("the header %s must carry a token of service account %s/%s for audience %s",
			v1alpha1.PreviewTokenHeader, v1alpha1.Namespace, v1alpha1.PreviewServiceAccount, v1alpha1.PreviewAudience))
		return false
	}
	bare := r.Clone(authenticator.WithAudiences(ctx, audiences)) // without this the API server would check for its own audience
	bare.TLS = nil                                               // client certificates authenticate no user here
	bare.Header = http.Header{"Authorization": {"Bearer " + token}}
	who, ok, err := h.Authenticator.AuthenticateRequest(bare)
	if err != nil || !ok {
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the token is not valid for audience "+v1alpha1.PreviewAudience)
		return false
	}
	may, why, err := h.Authorizer.Authorize(
		ctx,
		authorizer.AttributesRecord{User: who.User, Verb: strings.ToLower(r.Method), Path: r.URL.Path},
	)
	if err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "querying the rights of the token: "+err.Error())
		return false
	}
	if may != authorizer.DecisionAllow {
		refuse(
			w,
			http.StatusForbidden,
			metav1.StatusReasonForbidden,
			fmt.Sprintf("%s may not %s on %s: %s", who.User.GetName(), strings.ToLower(r.Method), r.URL.Path, why),
		)
		return false
	}
	return true
}

// question decodes the pods of a preview query.
func question(body []byte) ([]*corev1.Pod, error) {
	var q v1alpha1.PreviewRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("reading the query: %w", err)
	}
	if n := len(q.Pods); n == 0 || n > v1alpha1.MaxPreviewPods {
		return nil, fmt.Errorf("pods: the query has %d pods, must be 1 to %d", n, v1alpha1.MaxPreviewPods)
	}
	pods := make([]*corev1.Pod, len(q.Pods))
	for i := range q.Pods {
		if len(q.Pods[i].Spec.Containers) == 0 {
			return nil, errors.New("pods[" + fmt.Sprint(i) + "].spec.containers: must have at least one")
		}
		pods[i] = &q.Pods[i]
	}
	return pods, nil
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	write(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
