package ask

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
)

var errAway = errors.New("away")

type scheduler struct {
	asked []*corev1.Pod
	err   error
}

func (s *scheduler) Preview(_ context.Context, pods []*corev1.Pod) (v1alpha1.PreviewResponse, error) {
	s.asked = pods
	return v1alpha1.PreviewResponse{Nodes: 7, Assignments: []v1alpha1.PreviewAssignment{{Slot: 1, Pod: "p", Node: "n"}}}, s.err
}

func (s *scheduler) Fabric(_ context.Context, level string, most int) (v1alpha1.FabricResponse, error) {
	return v1alpha1.FabricResponse{Nodes: int32(most), Levels: []v1alpha1.FabricLevel{{Level: level}}}, s.err
}

// handler authenticates the token "good" as user "reader", who has the right to query, and "weak" as a user without that right.
func handler(s *scheduler) *Handler {
	return &Handler{
		Scheduler: s,
		Fault: func(err error) (Fault, bool) {
			return Fault{Code: http.StatusServiceUnavailable, Reason: v1alpha1.ReasonNotLeading}, errors.Is(err, errAway)
		},
		Authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			if r.TLS != nil || len(r.Header) != 1 {
				return nil, false, errors.New("something else than the token was looked at")
			}
			name, ok := map[string]string{"Bearer good": "reader", "Bearer weak": "stranger"}[r.Header.Get("Authorization")]
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, ok, nil
		}),
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			may := a.GetVerb() == "post" && a.GetPath() == "/holdfast/preview" || a.GetVerb() == "get" && a.GetPath() == "/holdfast/fabric"
			if a.GetUser().GetName() == "reader" && may && !a.IsResourceRequest() {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "no rule", nil
		}),
	}
}

const onePod = `{"pods":[{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}]}`

func TestWhoMayAskAndWhat(t *testing.T) {
	for _, c := range []struct {
		name, method, path, token, body string
		err                             error
		code                            int
		reason                          metav1.StatusReason
		says                            string
	}{
		{"well", "POST", "/holdfast/preview", "good", onePod, nil, 200, "", ""},
		{"another path", "POST", "/metrics", "good", onePod, nil, 404, "NotFound", "/holdfast/preview"},
		{"reading", "GET", "/holdfast/preview", "good", "", nil, 405, "MethodNotAllowed", "POST"},
		{"no token", "POST", "/holdfast/preview", "", onePod, nil, 401, "Unauthorized", "Holdfast-Preview-Token"},
		{"a bad token", "POST", "/holdfast/preview", "bad", onePod, nil, 401, "Unauthorized", "audience"},
		{"no right", "POST", "/holdfast/preview", "weak", onePod, nil, 403, "Forbidden", "stranger may not"},
		{"no JSON", "POST", "/holdfast/preview", "good", "pods", nil, 400, "BadRequest", "reading the query"},
		{"no pods", "POST", "/holdfast/preview", "good", `{"pods":[]}`, nil, 400, "BadRequest", "0 pods"},
		{"an empty pod", "POST", "/holdfast/preview", "good", `{"pods":[{}]}`, nil, 400, "BadRequest", "pods[0].spec.containers"},
		{"a replica that does not lead", "POST", "/holdfast/preview", "good", onePod, errAway, 503, "NotLeading", "away"},
		{"a failure", "POST", "/holdfast/preview", "good", onePod, errors.New("broken"), 500, "InternalError", "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scheduler{err: c.err}
			r := httptest.NewRequest(c.method, "https://x"+c.path, strings.NewReader(c.body))
			r.Header.Set("Authorization", "Bearer good") // means nothing here
			if c.token != "" {
				r.Header.Set(v1alpha1.PreviewTokenHeader, c.token)
			}
			w := httptest.NewRecorder()
			handler(s).ServeHTTP(w, r)
			if w.Code != c.code {
				t.Fatalf("code %d, want %d: %s", w.Code, c.code, w.Body)
			}
			if c.code == 200 {
				var got v1alpha1.PreviewResponse
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Nodes != 7 || len(got.Assignments) != 1 || len(s.asked) != 1 ||
					s.asked[0].Name != "p" {
					t.Errorf("answer %s, asked %v, %v", w.Body, s.asked, err)
				}
				return
			}
			var got metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Kind != "Status" || got.Reason != c.reason ||
				got.Code != int32(c.code) ||
				!strings.Contains(got.Message, c.says) {
				t.Errorf("status %s, %v", w.Body, err)
			}
			if c.err == nil && s.asked != nil {
				t.Error("the scheduler was asked")
			}
		})
	}
}

// TestWhoSendsSlowlyHoldsUpNobody: while one query with an endless body is being read, other queries are answered.
func TestWhoSendsSlowlyHoldsUpNobody(t *testing.T) {
	h := handler(&scheduler{})
	ask := func(body io.Reader) chan int {
		r := httptest.NewRequest("POST", "https://x/holdfast/preview", body)
		r.Header.Set(v1alpha1.PreviewTokenHeader, "good")
		code := make(chan int, 1)
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			code <- w.Code
		}()
		return code
	}
	slow, sends := io.Pipe()
	first := ask(slow)
	if _, err := sends.Write([]byte("{")); err != nil { // it is being read
		t.Fatal(err)
	}
	select {
	case code := <-ask(strings.NewReader(onePod)):
		if code != http.StatusOK {
			t.Errorf("the other question is answered with %d", code)
		}
	case <-time.After(eventually.Timeout):
		t.Error("the other question waits for the one that is sent slowly")
	}
	_ = sends.CloseWithError(io.ErrUnexpectedEOF)
	if code := <-first; code != http.StatusBadRequest {
		t.Errorf("a question that ends early is answered with %d", code)
	}
}

// The API server reviews a token for the audience of this service. A token for another audience is refused.
func TestTokensAreForThisAlone(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/apis/authentication.k8s.io/v1/tokenreviews":
			var r authenticationv1.TokenReview
			_ = json.NewDecoder(q.Body).Decode(&r)
			for _, wanted := range r.Spec.Audiences {
				if r.Spec.Token == "for-"+wanted {
					r.Status = authenticationv1.TokenReviewStatus{
						Authenticated: true,
						Audiences:     []string{wanted},
						User:          authenticationv1.UserInfo{Username: "reader"},
					}
				}
			}
			if len(r.Spec.Audiences) == 0 { // the API server then reviews the token for its own audience
				r.Status = authenticationv1.TokenReviewStatus{Authenticated: r.Spec.Token == "for-the-api", User: authenticationv1.UserInfo{Username: "reader"}}
			}
			write(w, http.StatusCreated, r)
		case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
			var r authorizationv1.SubjectAccessReview
			_ = json.NewDecoder(q.Body).Decode(&r)
			at := r.Spec.NonResourceAttributes
			r.Status.Allowed = r.Spec.User == "reader" && at != nil && at.Path == v1alpha1.PreviewPath && at.Verb == "post"
			write(w, http.StatusCreated, r)
		default:
			t.Errorf("the API server was asked for %s", q.URL)
		}
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	authn, authz, err := Delegate(client)
	if err != nil {
		t.Fatal(err)
	}
	for token, code := range map[string]int{"for-holdfast-preview": 200, "for-holdfast-coordinator": 401, "for-the-api": 401, "x": 401} {
		r := httptest.NewRequest("POST", "https://x"+v1alpha1.PreviewPath, strings.NewReader(onePod))
		r.Header.Set(v1alpha1.PreviewTokenHeader, token)
		w := httptest.NewRecorder()
		(&Handler{Scheduler: &scheduler{}, Authenticator: authn, Authorizer: authz}).ServeHTTP(w, r)
		if w.Code != code {
			t.Errorf("%s: code %d, want %d: %s", token, w.Code, code, w.Body)
		}
	}
}

// answers checks the status code of a response and a part of its text, where the scheduler fails with err.
func answers(t *testing.T, r *http.Request, token string, err error, code int, says string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Header.Set(v1alpha1.PreviewTokenHeader, token)
	handler(&scheduler{err: err}).ServeHTTP(w, r)
	if w.Code != code || !strings.Contains(w.Body.String(), says) {
		t.Errorf("code %d: %s", w.Code, w.Body)
	}
}

func TestTheFabricIsTold(t *testing.T) {
	for _, c := range []struct {
		name, method, query, token, says string
		err                              error
		code                             int
	}{
		{"well", "GET", "?level=rack&most=7", "good", `{"nodes":7,"levels":[{"level":"rack"`, nil, 200},
		{"nothing said", "GET", "", "good", `{"nodes":3,"levels":[{"level":""`, nil, 200},
		{"no number", "GET", "?most=many", "good", "most: ", nil, 400},
		{"too many", "GET", "?most=101", "good", "from 0 to 100", nil, 400},
		{"no right", "GET", "", "weak", "may not get on /holdfast/fabric", nil, 403},
		{"writing", "POST", "", "good", "GET", nil, 405},
		{"another leads", "GET", "", "good", "away", errAway, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			answers(t, httptest.NewRequest(c.method, "/holdfast/fabric"+c.query, nil), c.token, c.err, c.code, c.says)
		})
	}
}
