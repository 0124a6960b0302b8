package traces

import (
	"context"
	"encoding/hex"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
)

// receiver is an OTLP receiver that keeps what it gets.
type receiver struct {
	collectorv1.UnimplementedTraceServiceServer
	got chan *collectorv1.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.got <- req
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// receive serves OTLP on this machine.
func receive(t *testing.T) (*receiver, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, server := &receiver{got: make(chan *collectorv1.ExportTraceServiceRequest, 8)}, grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return r, "http://" + l.Addr().String()
}

// export exports a recovery with a process of its own and returns the spans that arrived, by name.
func export(t *testing.T, r *receiver, rec elastic.Recovery) (map[string]*tracev1.Span, string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	e, err := FromEnv(ctx, "v1", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	e.Export(coordinator.Key{Namespace: "team", Name: "train", Job: "uid-1"}, rec)
	cancel() // the process ends
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	spans, about := map[string]*tracev1.Span{}, ""
	select {
	case req := <-r.got:
		for _, of := range req.ResourceSpans {
			about = of.Resource.String()
			for _, scope := range of.ScopeSpans {
				for _, s := range scope.Spans {
					spans[s.Name] = s
				}
			}
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no spans arrived")
	}
	return spans, about
}

func recovery() elastic.Recovery {
	return elastic.Recovery{Generation: 3, Cause: cause.Cause{Code: "RankKilled", Rank: 5, Slot: 1, Message: "killed by signal 9"},
		DetectedAt: time.Unix(1_800_000_000, 0), Detect: elastic.NotReached, Drain: elastic.NotReached,
		Decide: 2 * time.Millisecond, Stop: 10 * time.Millisecond, Replace: 3 * time.Second,
		Fetch: elastic.NotReached, Check: elastic.NotReached,
		Start: 40 * time.Millisecond, Restore: 0, FirstStep: 90 * time.Millisecond, RestoreStep: 100, Ranks: 8, Standbys: 7}
}

// TestTrace: a receiver gets one trace with a span of the whole and one of each phase that was reached, with the record's times.
func TestTrace(t *testing.T) {
	r, url := receive(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	rec := recovery()
	spans, about := export(t, r, rec)
	if !strings.Contains(about, "holdfast-controller") || len(spans) != 7 {
		t.Fatalf("%d spans of %s: %v", len(spans), about, spans)
	}
	whole, at := spans["recovery"], uint64(rec.DetectedAt.UnixNano())
	if whole == nil || len(whole.ParentSpanId) != 0 || whole.StartTimeUnixNano != at || whole.EndTimeUnixNano != at+uint64(rec.Total()) {
		t.Fatalf("%v", whole)
	}
	for _, want := range []string{"holdfast.cause", "RankKilled", "team", "train", "uid-1", "killed by signal 9"} {
		if !strings.Contains(whole.String(), want) {
			t.Errorf("no %s in %v", want, whole)
		}
	}
	for _, p := range rec.Phases() {
		s := spans[p.Name]
		if s == nil || string(s.TraceId) != string(whole.TraceId) || string(s.ParentSpanId) != string(whole.SpanId) ||
			s.StartTimeUnixNano != at || s.EndTimeUnixNano != at+uint64(p.Took) {
			t.Errorf("%s from %d: %v", p.Name, at, s)
		}
		at += uint64(p.Took)
	}
}

// TestSameAgain: another process exports the same recovery with the same identifiers, and another generation with others.
func TestSameAgain(t *testing.T) {
	r, url := receive(t)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)
	first, _ := export(t, r, recovery())
	again, _ := export(t, r, recovery())
	next := recovery()
	next.Generation++
	other, _ := export(t, r, next)
	ids := map[string]bool{}
	for name, s := range first {
		if a := again[name]; a == nil || string(a.TraceId) != string(s.TraceId) || string(a.SpanId) != string(s.SpanId) {
			t.Errorf("%s: %v, then %v", name, s, a)
		}
		ids[hex.EncodeToString(s.SpanId)] = true
	}
	if len(ids) != len(first) || string(other["recovery"].TraceId) == string(first["recovery"].TraceId) {
		t.Errorf("identifiers repeat: %v", ids)
	}
}

// TestSettings: attributes that are not written as name=value are left out, and the protocol of traces overrides that of all signals.
func TestSettings(t *testing.T) {
	r, url := receive(t)
	for name, value := range map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_RESOURCE_ATTRIBUTES": "team,zone=z7",
		"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"} {
		t.Setenv(name, value)
	}
	if _, about := export(t, r, recovery()); !strings.Contains(about, "holdfast-controller") || !strings.Contains(about, "z7") {
		t.Errorf("the resource is %s", about)
	}
}

// TestOff: without an endpoint nothing is exported, and a protocol that is not served is refused by its name.
func TestOff(t *testing.T) {
	for _, c := range []struct {
		env   [][2]string
		wrong string
	}{
		{nil, ""},
		{[][2]string{{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"}, {"OTEL_SDK_DISABLED", "true"}}, ""},
		{[][2]string{{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"}, {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}}, "OTEL_EXPORTER_OTLP_PROTOCOL"},
	} {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
			t.Setenv(name, "")
		}
		for _, kv := range c.env {
			t.Setenv(kv[0], kv[1])
		}
		e, err := FromEnv(t.Context(), "v1", logr.Discard())
		if e != nil || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%v: %v, %v", c.env, e, err)
		}
	}
}
