package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
)

// observing restricts every client made from cfg to reads and writes of Holdfast's own objects. Any other write of this process is refused
// here, also one that a later version adds.
func observing(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return observeOnly{next} })
}

// observeOnly passes on reads, and writes of the resources in own.
type observeOnly struct{ next http.RoundTripper }

// own are the resources that may still be written: Holdfast's reports, the objects of its own operation, and review requests, which are
// created as objects.
var own = []string{"gangs", "gangs/status", "events", "leases", "secrets", "mutatingwebhookconfigurations", "tokenreviews", "subjectaccessreviews"}

func (t observeOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	read := req.Method == http.MethodGet || req.Method == http.MethodHead
	if !read && !slices.Contains(own, resourceOf(req.URL.Path)) {
		return nil, fmt.Errorf("%s %s is refused: holdfast-controller runs with --observe-only", req.Method, req.URL.Path)
	}
	return t.next.RoundTrip(req)
}

// resourceOf returns the resource in a path of the API, with its subresource; "" if there is none.
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
