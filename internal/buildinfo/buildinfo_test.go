package buildinfo

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestCollector(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(Collector("holdfast-x", "v1.2.3"))
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%v, %v", families, err)
	}
	labels := map[string]string{}
	for _, l := range families[0].Metric[0].Label {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["component"] != "holdfast-x" || labels["version"] != "v1.2.3" || labels["goversion"] == "" || families[0].Metric[0].Gauge.GetValue() != 1 {
		t.Errorf("%v", families[0])
	}
}
