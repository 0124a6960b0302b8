package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMinorOf(t *testing.T) {
	for minor, want := range map[string]int{"35": 35, "33+": 33, "": 0, "x": 0} {
		if got := minorOf(apiversion.Info{Major: "1", Minor: minor}); got != want {
			t.Errorf("%q: %d", minor, got)
		}
	}
	if got := minorOf(apiversion.Info{Major: "2", Minor: "1"}); got != 0 {
		t.Errorf("2.1: %d", got)
	}
}

// TestServerMinor: a server whose version is unknown is not treated as an old one, and is queried again.
func TestServerMinor(t *testing.T) {
	var answer atomic.Value
	var asked atomic.Int64
	answer.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch body := answer.Load().(string); body {
		case "":
			w.WriteHeader(http.StatusForbidden)
		default:
			fmt.Fprint(w, body)
		}
	}))
	defer server.Close()
	now := clocktesting.NewFakePassiveClock(time.Now())
	version, err := newServerVersion(&rest.Config{Host: server.URL}, now)
	if err != nil {
		t.Fatal(err)
	}
	ask := version.ask
	version.ask = func(ctx context.Context) int { return ask(context.WithoutCancel(ctx)) } // a busy machine may respond late
	learnt := func(want int, times int64) {
		t.Helper()
		if got := version.minor(context.Background()); got != want || asked.Load() != times {
			t.Errorf("learnt %d, want %d; asked %d times, want %d", got, want, asked.Load(), times)
		}
	}
	learnt(0, 1)
	learnt(0, 1)
	answer.Store(`{"major":"1","minor":"36+"}`)
	now.SetTime(now.Now().Add(versionRetry))
	learnt(36, 2)
	learnt(36, 2)
}

// TestASilentServerHoldsUpNobody: a known version is returned at once. For an unknown version callers wait at most versionWait.
func TestASilentServerHoldsUpNobody(t *testing.T) {
	for known, wait := range map[int]time.Duration{36: 0, 0: versionWait} {
		synctest.Test(t, func(t *testing.T) {
			v := &serverVersion{now: clock.RealClock{}, known: known, ask: func(ctx context.Context) int { <-ctx.Done(); return 0 }}
			for _, wait := range []time.Duration{wait, 0} { // the caller that starts the query, and the next one
				began := time.Now()
				if got, took := v.minor(t.Context()), time.Since(began); got != known || took != wait {
					t.Errorf("1.%d is answered with 1.%d after %s, want %s", known, got, took, wait)
				}
			}
			time.Sleep(2 * versionWait) // the background query ends
		})
	}
}
