package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"holdfast.dev/holdfast/internal/eventually"
)

// reviews returns an API server that knows two tokens. The account of one of them may read metrics.
func reviews(t *testing.T) *rest.Config {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			var review authenticationv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			review.Status.Authenticated = review.Spec.Token == "reader" || review.Spec.Token == "other"
			review.Status.User.Username = review.Spec.Token
			_ = json.NewEncoder(w).Encode(review)
		case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
			var review authorizationv1.SubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				t.Error(err)
			}
			asked := review.Spec.NonResourceAttributes
			review.Status.Allowed = review.Spec.User == "reader" && asked != nil && asked.Path == "/metrics" && asked.Verb == "get"
			_ = json.NewEncoder(w).Encode(review)
		default:
			t.Errorf("asked for %s", r.URL)
		}
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// TestMetricsAreForThoseWhoMay: metrics describe jobs of all namespaces, so only accounts with the right get them.
func TestMetricsAreForThoseWhoMay(t *testing.T) {
	own := httptest.NewUnstartedServer(nil)
	own.StartTLS() // for its certificate
	defer own.Close()
	config := reviews(t)
	plain := &http.Client{}
	secure := func(c *tls.Config) {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &own.TLS.Certificates[0], nil }
	}
	server, err := metricsserver.NewServer(metricsOptions("127.0.0.1:0", secure), config, plain)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Start(t.Context()) }()
	address := ""
	eventually.Holds(t, "metrics to be served", func() (bool, any) {
		select {
		case err := <-ended:
			t.Fatalf("metrics are not served: %v", err)
		default:
		}
		address = server.(interface{ GetBindAddr() string }).GetBindAddr()
		return address != "", nil
	})
	ask := func(scheme, token string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := own.Client().Do(req)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		return fmt.Sprint(res.StatusCode)
	}
	eventually.Holds(t, "metrics are served", func() (bool, any) { got := ask("https", ""); return got == "401", got })
	// controller-runtime's status for a token that the API server does not know is 500.
	for token, want := range map[string]string{"": "401", "nobody": "500", "other": "403", "reader": "200"} {
		if got := ask("https", token); got != want {
			t.Errorf("token %q: %s, want %s", token, got, want)
		}
	}
	if got := ask("http", "reader"); got == "200" {
		t.Error("metrics are served without encryption")
	}
}
