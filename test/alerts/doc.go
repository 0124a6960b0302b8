// Package alerts has only tests, of the alerts, dashboards and monitors in manifests/monitoring. It is a module of its
// own, because Prometheus links more than all of Holdfast.
package alerts
