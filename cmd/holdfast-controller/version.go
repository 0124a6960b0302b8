package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// versionLife is how long a known version of the API server is used, versionRetry the wait after a failed query; versionWait bounds the
// wait of an admission call if the version is not known yet.
const (
	versionLife  = 5 * time.Minute
	versionRetry = 10 * time.Second
	versionWait  = time.Second
)

// newServerVersion queries the API server of a configuration.
func newServerVersion(cfg *rest.Config, now clock.PassiveClock) (*serverVersion, error) {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("setting up discovery: %w", err)
	}
	return &serverVersion{now: now, ask: func(ctx context.Context) int { return askMinor(ctx, client.RESTClient()) }}, nil
}

// serverVersion is the API server's version, once known.
type serverVersion struct {
	ask    func(context.Context) int
	now    clock.PassiveClock
	flight singleflight.Group

	mu    sync.Mutex // never held during a query
	known int
	due   time.Time
}

// minor returns N of the API server's Kubernetes 1.N, 0 if it was never known. The server may be upgraded while the controller runs: a
// known version is returned at once, and refreshed in the background.
func (v *serverVersion) minor(ctx context.Context) int {
	known, due := v.state()
	if !due {
		return known
	}
	done := v.flight.DoChan("", func() (any, error) {
		v.refresh()
		return nil, nil
	})
	if known > 0 {
		return known
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
	known, _ = v.state()
	return known
}

func (v *serverVersion) state() (known int, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known, !v.now.Now().Before(v.due)
}

// refresh serves all waiting callers, so it does not end with the first one's context.
func (v *serverVersion) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), versionWait)
	defer cancel()
	n := v.ask(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.due = v.now.Now().Add(versionRetry)
	if n > 0 {
		v.known, v.due = n, v.now.Now().Add(versionLife)
	}
}

// askMinor returns 0 if the server does not report its version.
func askMinor(ctx context.Context, client rest.Interface) int {
	body, err := client.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return 0
	}
	var info apiversion.Info
	if json.Unmarshal(body, &info) != nil {
		return 0
	}
	return minorOf(info)
}

// minorOf parses "35" and, as some clouds have it, "35+".
func minorOf(info apiversion.Info) int {
	digits := strings.TrimRight(info.Minor, "+")
	n, err := strconv.Atoi(digits)
	if err != nil || info.Major != "1" {
		return 0
	}
	return n
}
