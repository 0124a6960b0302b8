package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/elastic/traces"
)

// addTraces returns what exports recoveries; nil: no endpoint is configured.
func addTraces(mgr manager.Manager) (func(coordinator.Key, elastic.Recovery), error) {
	exporter, err := traces.FromEnv(context.Background(), version, mgr.GetLogger().WithName("traces"))
	if err != nil || exporter == nil {
		return nil, err
	}
	if err := mgr.Add(exporter); err != nil {
		return nil, fmt.Errorf("adding the export of traces: %w", err)
	}
	return exporter.Export, nil
}
