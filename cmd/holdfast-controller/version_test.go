package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"holdfast.dev/holdfast/internal/eventually"
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

// TestServerMinor: a server that does not answer is not taken for an old one, and is asked again, by none in its way.
func TestServerMinor(t *testing.T) {
	var answer atomic.Value
	var asked atomic.Int64
	release := make(chan struct{})
	answer.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch body := answer.Load().(string); body {
		case "":
			w.WriteHeader(http.StatusForbidden)
		case "waits":
			<-release
		default:
			fmt.Fprint(w, body)
		}
	}))
	defer server.Close()
	defer close(release)
	now := clocktesting.NewFakePassiveClock(time.Now())
	version, err := newServerVersion(&rest.Config{Host: server.URL}, now)
	if err != nil {
		t.Fatal(err)
	}
	ask := version.ask
	version.ask = func(ctx context.Context) int { return ask(context.WithoutCancel(ctx)) } // a busy machine may be late to answer
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
	// One that has stopped answering holds up nobody: neither who has it asked again, nor who comes meanwhile.
	answer.Store("waits")
	now.SetTime(now.Now().Add(versionLife))
	known := make(chan int, 3)
	go func() {
		for range cap(known) {
			known <- version.minor(context.Background())
		}
	}()
	for range cap(known) {
		select {
		case got := <-known:
			if got != 36 {
				t.Errorf("forgot, and learnt %d", got)
			}
		case <-time.After(eventually.Timeout):
			t.Fatal("it is waited for what is known")
		}
	}
}
