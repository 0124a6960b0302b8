package controller

import (
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// apiQPS and apiBurst are what one replica may ask of the API server, which has fairness of its own. To replace a pod
// takes two requests, and where a rack fails hundreds of pods are replaced at once.
const (
	apiQPS   = 1000
	apiBurst = 2000
)

// Tune sets a manager's configuration for the clients Options.Client and Options.Live.
func Tune(c *rest.Config) {
	c.QPS, c.Burst = apiQPS, apiBurst
	// Since Kubernetes 1.37 (WatchListCompression) an API server compresses each event of a watch, for each watcher anew, which costs it most
	// when it has most to do. Its own controllers ask for none either.
	c.DisableCompression = true
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusedAtOnce{next} })
}

// refusedAtOnce is the transport of the client that Options.Client writes by. Where a disruption budget is not counted yet the API
// server refuses an eviction with a time to wait, and the client obeys: ten times ten seconds in which nobody hears why, and this
// evictor does nothing else. When to ask again is this package's to say.
type refusedAtOnce struct{ next http.RoundTripper }

func (r refusedAtOnce) RoundTrip(q *http.Request) (*http.Response, error) {
	a, err := r.next.RoundTrip(q)
	if err == nil && a.StatusCode == http.StatusTooManyRequests && q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/eviction") {
		a.Header.Del("Retry-After")
	}
	return a, err
}
