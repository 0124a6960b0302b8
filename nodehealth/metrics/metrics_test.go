package metrics

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/nodehealth"
)

// TestServe: a scrape returns only the present verdict.
func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := New("v1")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { m.serve(ctx, listener, slog.New(slog.DiscardHandler)); close(done) }()
	defer func() { cancel(); <-done }()
	at := time.Unix(1_700_000_000, 250_000_000)
	m.Verdict(nodehealth.Verdict{Action: nodehealth.None})
	m.Verdict(nodehealth.Verdict{Action: nodehealth.Evict, Cause: nodehealth.GPULost, Seen: nodehealth.Seen{GPUs: 8}})
	m.Signal(nodehealth.Signal{Source: nodehealth.API, Kind: nodehealth.Expected, Code: 9})
	m.Signal(nodehealth.Signal{At: at, Source: nodehealth.NVML, Kind: nodehealth.Read, Readings: make([]nodehealth.Reading, 7)})
	m.Signal(nodehealth.Signal{Source: nodehealth.Kmsg, Kind: nodehealth.Xid, Code: 79})
	m.Round(2 * time.Millisecond)
	m.Line()
	m.Answered()
	text := fetch(t, "http://"+listener.Addr().String()+"/metrics")
	for _, want := range []string{
		`holdfast_node_verdict{action="Evict",cause="GPULost"} 1`, "holdfast_node_gpus 7", "holdfast_node_gpus_expected 8",
		`holdfast_node_signals_total{kind="xid",source="kmsg"} 1`, `holdfast_node_contact_timestamp_seconds{with="nvml"} 1.70000000025e+09`,
		"holdfast_node_nvml_round_seconds_count 1", "holdfast_node_kernel_lines_total 1", `holdfast_node_contact_timestamp_seconds{with="api"} `,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^holdfast_node_verdict\{`).FindAllString(text, -1)); n != 1 {
		t.Errorf("%d verdicts stand in\n%s", n, text)
	}
}

// TestServeWithoutAPort: a daemon whose port is in use logs that, and runs without metrics.
func TestServeWithoutAPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var said strings.Builder
	New("v1").Serve(t.Context(), taken.Addr().String(), slog.New(slog.NewTextHandler(&said, nil)))
	if !strings.Contains(said.String(), "there are no metrics") || !strings.Contains(said.String(), "address already in use") {
		t.Errorf("the log says %q", said.String())
	}
}

func fetch(t *testing.T, url string) (text string) {
	t.Helper()
	eventually.Succeeds(t, "metrics are served", func() error {
		resp, err := http.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %v", resp.Status, err)
		}
		text = "\n" + string(body)
		return nil
	})
	return text
}
