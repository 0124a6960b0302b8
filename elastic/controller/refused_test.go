package controller

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// While a disruption budget is not counted yet, the API server's answer to an eviction says to retry after ten seconds. The client would
// retry ten times before it returns an error; here it returns at once. The client also requests no compression.
func TestARefusalIsHeardAtOnce(t *testing.T) {
	const says = "The disruption budget keep is still being processed by the server."
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if how := r.Header.Get("Accept-Encoding"); how != "" && how != "identity" {
			t.Errorf("it is asked for answers in %s", how)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "10")
		w.WriteHeader(http.StatusTooManyRequests)
		refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
		refused.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		refused.ErrStatus.Details.Causes = append(
			refused.ErrStatus.Details.Causes,
			metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: says},
		)
		if err := json.NewEncoder(w).Encode(refused.ErrStatus); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	Tune(cfg)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "b"}}
	err = c.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{})
	if why, refused := refusal(err); asked != 1 || !refused || why != says {
		t.Errorf("asked %d times, heard %q, %v: %v", asked, why, refused, err)
	}
}
