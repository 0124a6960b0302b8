package main

import (
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// logOnly is a manager that has only a log.
type logOnly struct{ manager.Manager }

func (logOnly) GetLogger() logr.Logger { return logr.Discard() }

// TestWrongTelemetry: OpenTelemetry's variables, which a cluster may inject, do not end the controller.
func TestWrongTelemetry(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	if export, err := addTraces(logOnly{}); export != nil || err != nil {
		t.Errorf("exports: %v, error %v", export != nil, err)
	}
}
