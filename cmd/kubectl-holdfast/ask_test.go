package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// ask queries an API server that grants or refuses tokens. The first `followers` replicas of its scheduler do not lead.
func ask(t *testing.T, followers int, token, last *metav1.Status) (*v1alpha1.PreviewResponse, string, error) {
	t.Helper()
	write := func(w http.ResponseWriter, code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	status := func(w http.ResponseWriter, s metav1.Status) {
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		write(w, int(s.Code), s)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		question := v1alpha1.PreviewRequest{}
		switch {
		case strings.HasSuffix(r.URL.Path, "/serviceaccounts/holdfast-preview/token") && token != nil:
			status(w, *token)
		case strings.HasSuffix(r.URL.Path, "/serviceaccounts/holdfast-preview/token"):
			write(
				w,
				http.StatusCreated,
				authenticationv1.TokenRequest{
					TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
					Status:   authenticationv1.TokenRequestStatus{Token: "secret"},
				},
			)
		case r.URL.Path != "/api/v1/namespaces/holdfast-system/services/https:holdfast-scheduler-preview:preview/proxy/holdfast/preview" || r.Method != http.MethodPost || r.Header.Get(v1alpha1.PreviewTokenHeader) != "secret":
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		case json.NewDecoder(r.Body).Decode(&question) != nil || len(question.Pods) != 1:
			t.Errorf("asked about %d pods", len(question.Pods))
		case followers > 0:
			followers--
			status(w, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: v1alpha1.ReasonNotLeading})
		case last != nil:
			status(w, *last)
		default:
			write(w, http.StatusOK, v1alpha1.PreviewResponse{Nodes: 7})
		}
	}))
	defer server.Close()
	return askWhere(t.Context(), &rest.Config{Host: server.URL}, []corev1.Pod{{}})
}

func TestAskWhere(t *testing.T) {
	if where, unasked, err := ask(t, 2, nil, nil); err != nil || unasked != "" || where == nil || where.Nodes != 7 {
		t.Errorf("replicas that follow, then one that leads: %+v, %q, %v", where, unasked, err)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"}, "holdfast-preview", nil).Status()
	absent := apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, "holdfast-scheduler-preview").Status()
	invalid := apierrors.NewBadRequest("pods[0] names no gang").Status()
	for name, c := range map[string]struct {
		token, last *metav1.Status
		want        string
	}{
		"may not":      {&forbidden, nil, "the Role holdfast-preview"},
		"old manifest": {nil, &absent, "does not answer this"},
		"bad question": {nil, &invalid, "names no gang"},
	} {
		if where, unasked, err := ask(t, 0, c.token, c.last); err != nil || where != nil || !strings.Contains(unasked, c.want) {
			t.Errorf("%s: %+v, %q, %v", name, where, unasked, err)
		}
	}
}
