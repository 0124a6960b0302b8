// Package traces exports one OpenTelemetry trace for each recovery, by OTLP over gRPC: a span of the whole recovery, with
// a span of each phase in it. The times are those of the recovery's record. Identifiers follow from the job's UID and the
// generation, so that a recovery that is exported again, as after a change of leader, has the same trace.
package traces

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
)

// flushTime bounds the export of what is left at the end of the process.
const flushTime = 3 * time.Second

// maxText bounds the text of a cause, in bytes.
const maxText = 1000

// Exporter exports recoveries in the background. A receiver that does not answer delays nothing; what does not fit into the
// queue is dropped. It is a manager.Runnable.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// FromEnv returns an Exporter for the endpoint that OpenTelemetry's environment variables name; nil: they name none, or
// switch it off.
func FromEnv(ctx context.Context, version string, log logr.Logger) (*Exporter, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" ||
		strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	name := "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" // takes precedence
	if os.Getenv(name) == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
	}
	if protocol := os.Getenv(name); protocol != "" && protocol != "grpc" {
		return nil, fmt.Errorf("%s=%q: set it to grpc, the only protocol that is supported, and name the receiver's port for it, such as 4317", name, protocol)
	}
	otel.SetLogger(log)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Error(err, "exporting traces") }))
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "holdfast-controller"), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil { // what could be read is in about
		log.Error(err, "some attributes of OTEL_RESOURCE_ATTRIBUTES are left out of traces: write each as name=value")
	}
	client, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("setting up the export of traces (OTEL_EXPORTER_OTLP_…): %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(client), sdktrace.WithResource(about),
		sdktrace.WithIDGenerator(fixed{}), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	return &Exporter{provider: provider, tracer: provider.Tracer("holdfast.dev/holdfast/elastic")}, nil
}

// Start waits for the end of the process and exports what is left.
func (e *Exporter) Start(ctx context.Context) error {
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("exporting the last traces: %w", err)
	}
	return nil
}

// NeedLeaderElection reports that it runs on every replica: it ends after the leader's last recovery.
func (e *Exporter) NeedLeaderElection() bool { return false }

// Export queues the trace of a recovery that is complete.
func (e *Exporter) Export(key coordinator.Key, r elastic.Recovery) {
	id := named(key.Job, r.Generation)
	ctx, whole := e.start(context.Background(), id, "recovery", r.DetectedAt, attributes(key, r)...)
	from := r.DetectedAt
	for _, p := range r.Phases() {
		_, span := e.start(ctx, id, p.Name, from)
		from = from.Add(p.Took)
		span.End(trace.WithTimestamp(from))
	}
	whole.End(trace.WithTimestamp(from))
}

// start begins a span whose identifiers follow from the recovery and the span's name.
func (e *Exporter) start(
	ctx context.Context,
	id, name string,
	at time.Time,
	about ...attribute.KeyValue,
) (context.Context, trace.Span) {
	return e.tracer.Start(context.WithValue(ctx, spanKey{}, [2]string{id, id + "/" + name}), name,
		trace.WithTimestamp(at), trace.WithAttributes(about...))
}

func attributes(key coordinator.Key, r elastic.Recovery) []attribute.KeyValue {
	about := []attribute.KeyValue{
		attribute.String("k8s.namespace.name", key.Namespace),
		attribute.String("holdfast.gang", key.Name),
		attribute.String("holdfast.job.uid", key.Job),
		attribute.Int64("holdfast.generation", r.Generation),
		attribute.String("holdfast.cause", string(r.Cause.Code)),
		attribute.String("holdfast.cause.message", cause.Ends(r.Cause.Message, maxText)),
		attribute.Int64("holdfast.restore_step", r.RestoreStep),
		attribute.Int("holdfast.ranks", r.Ranks),
		attribute.Int("holdfast.standbys", r.Standbys),
		attribute.Int("holdfast.replaced_pods", max(r.ReplacedPods, len(r.Replaced))),
	}
	if r.Cause.Rank >= 0 {
		about = append(about, attribute.Int("holdfast.cause.rank", r.Cause.Rank), attribute.Int("holdfast.cause.slot", r.Cause.Slot))
	}
	if r.CostKnown() {
		about = append(about, attribute.Int64("holdfast.steps_recomputed", r.StepsRecomputed))
	}
	return about
}

// named identifies a recovery.
func named(job string, generation int64) string { return fmt.Sprintf("%s/%d", job, generation) }

type spanKey struct{}

// fixed computes identifiers from the names of recovery and span.
type fixed struct{}

var _ sdktrace.IDGenerator = fixed{}

// NewIDs returns the identifiers of a trace and of its first span.
func (f fixed) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	names, _ := ctx.Value(spanKey{}).([2]string)
	sum := sha256.Sum256([]byte(names[0]))
	id := trace.TraceID(sum[:16])
	return id, f.NewSpanID(ctx, id)
}

// NewSpanID returns the identifier of a further span.
func (fixed) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	names, _ := ctx.Value(spanKey{}).([2]string)
	sum := sha256.Sum256([]byte(names[1]))
	return trace.SpanID(sum[:8])
}
