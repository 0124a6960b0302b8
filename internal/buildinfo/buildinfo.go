// Package buildinfo has one metric, which names the version of the program that serves it.
package buildinfo

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns the metric of a program.
func Collector(component, version string) prometheus.Collector {
	v := prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Name: "holdfast_build_info", Help: "1; the labels name the version of the program that serves this metric."},
		[]string{"component", "version", "revision", "goversion"})
	v.WithLabelValues(component, version, revision(), runtime.Version()).Set(1)
	return v
}

// revision is the commit that the program was built from; empty: the build does not say.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
