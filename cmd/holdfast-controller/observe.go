package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
)

// observing holds every client that is made of cfg to what changes nothing but what is Holdfast's own: whatever part of the
// process asks for more, now or in a later version, is refused here.
func observing(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return observeOnly{next} })
}

// observeOnly lets through reads, and writes of the resources in own.
type observeOnly struct{ next http.RoundTripper }

// own are the resources that are written all the same: what Holdfast tells, what it keeps itself alive by, and questions that
// are asked by creating an object.
var own = []string{"gangs", "gangs/status", "events", "leases", "secrets", "mutatingwebhookconfigurations", "tokenreviews", "subjectaccessreviews"}

func (t observeOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	read := req.Method == http.MethodGet || req.Method == http.MethodHead
	if !read && !slices.Contains(own, resourceOf(req.URL.Path)) {
		return nil, fmt.Errorf("%s %s is left out: holdfast-controller runs with --observe-only", req.Method, req.URL.Path)
	}
	return t.next.RoundTrip(req)
}

// resourceOf is the resource, with its subresource, that a path of the API names; "" where it names none.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return ""
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}
