package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/traces"
)

// addTraces returns what exports recoveries; nil: no endpoint is configured, or OpenTelemetry's environment variables are wrong, which is
// logged: recoveries do not depend on their traces.
func addTraces(mgr manager.Manager) (func(coordinator.Key, elastic.Recovery), error) {
	log := mgr.GetLogger().WithName("traces")
	exporter, err := traces.FromEnv(context.Background(), version, log)
	if err != nil {
		log.Error(err, "no traces are exported")
	}
	if exporter == nil {
		return nil, nil
	}
	if err := mgr.Add(exporter); err != nil {
		return nil, fmt.Errorf("adding the export of traces: %w", err)
	}
	return exporter.Export, nil
}
