package controller

import (
	"net/http"
	"strings"
)

// RefusedAtOnce wraps the transport of the client that Options.Client writes by. Where a disruption budget is not counted yet the API
// server refuses an eviction with a time to wait, and the client obeys: ten times ten seconds in which nobody hears why, and this
// evictor does nothing else. When to ask again is this package's to say.
func RefusedAtOnce(next http.RoundTripper) http.RoundTripper { return refusedAtOnce{next} }

type refusedAtOnce struct{ next http.RoundTripper }

func (r refusedAtOnce) RoundTrip(q *http.Request) (*http.Response, error) {
	a, err := r.next.RoundTrip(q)
	if err == nil && a.StatusCode == http.StatusTooManyRequests && q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/eviction") {
		a.Header.Del("Retry-After")
	}
	return a, err
}
