package node

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/nodehealth"
)

// mostRequests ends a test in which the Writer never pauses.
const mostRequests = 5000

// clocked answers requests at once, and records when they arrived by the clock of the synctest bubble.
type clocked struct {
	node    corev1.Node
	refuse  func() int // the status code for a write; 0: success
	reads   []string   // the queries of reads
	times   []time.Duration
	started time.Time
}

func (c *clocked) RoundTrip(r *http.Request) (*http.Response, error) {
	c.times = append(c.times, time.Since(c.started))
	status := http.StatusOK
	if r.Method == http.MethodGet {
		c.reads = append(c.reads, r.URL.RawQuery)
	} else if s := c.refuse(); s != 0 && len(c.times) < mostRequests {
		status = s
	}
	body, err := json.Marshal(&c.node)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

// play makes a Writer write a verdict to a server that refuses for 10 s, and returns the requests in that time.
func play(t *testing.T, status int, span time.Duration) *clocked {
	c := &clocked{node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "1"}}}
	synctest.Test(t, func(t *testing.T) {
		c.started = time.Now()
		c.refuse = func() int {
			if time.Since(c.started) < 10*time.Second {
				return status
			}
			return 0
		}
		w := New(Options{Client: &http.Client{Transport: c}, Server: "http://server", Node: "n1", Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		w.Publish(nodehealth.Verdict{Action: nodehealth.Evict, Cause: nodehealth.GPULost, Boot: "b"})
		time.Sleep(span)
		cancel()
		<-done
	})
	return c
}

// TestConflictsAreAnsweredWithPauses: the daemon does not race a client that writes all the time. Two daemons with the same conflict do not
// retry in lockstep. After a conflict the newest version is read.
func TestConflictsAreAnsweredWithPauses(t *testing.T) {
	a, b := play(t, http.StatusConflict, 9*time.Second), play(t, http.StatusConflict, 9*time.Second)
	for _, c := range []*clocked{a, b} {
		if n := len(c.times); n < 6 || n > 60 {
			t.Errorf("%d requests in 9 s of conflicts", n)
		}
		if first := c.reads[0]; first != "resourceVersion=0" {
			t.Errorf("the first read asks for %q, the cache would do", first)
		}
		if later := c.reads[1:]; slices.Contains(later, "resourceVersion=0") {
			t.Errorf("after a conflict it reads %q: the cache may be what was old", later)
		}
	}
	if slices.Equal(a.times, b.times) {
		t.Errorf("two daemons go on in step: %v", a.times)
	}
}

// TestServerThatRefuses: requests to a failing API server become rarer, and two daemons do not send them in lockstep.
func TestServerThatRefuses(t *testing.T) {
	a, b := play(t, http.StatusServiceUnavailable, 9*time.Second), play(t, http.StatusServiceUnavailable, 9*time.Second)
	if n := len(a.times); n < 4 || n > 30 {
		t.Errorf("%d requests in 9 s of refusals", n)
	}
	if slices.Equal(a.times, b.times) {
		t.Errorf("two daemons go on in step: %v", a.times)
	}
}

// TestLooksAreCheap: each daemon reads its verdict from the API server's cache, at times of its own.
func TestLooksAreCheap(t *testing.T) {
	a, b := play(t, 0, 10*time.Minute), play(t, 0, 10*time.Minute)
	if n := len(a.reads); n < 7 || n > 12 {
		t.Errorf("%d reads in 10 minutes", n)
	}
	for _, query := range a.reads {
		if query != "resourceVersion=0" {
			t.Errorf("a look asks for %q: the cache would do", query)
		}
	}
	if slices.Equal(a.times, b.times) {
		t.Errorf("two daemons look in step: %v", a.times)
	}
}
