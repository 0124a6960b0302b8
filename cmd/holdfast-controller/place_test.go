package main

import (
	"crypto/tls"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"holdfast.dev/holdfast/internal/configfile"
)

func TestPlaceIsFree(t *testing.T) {
	p := place{namespace: "ml", prefix: "acme-"}
	if got := p.host(coordinatorService); got != "acme-holdfast-coordinator.ml.svc" {
		t.Error(got)
	}
	if got := placeDefaults().host(coordinatorService); got != "holdfast-coordinator.holdfast-system.svc" {
		t.Error(got)
	}
	o := defaults()
	o.place = p
	m := managerOptions(o, func(*tls.Config) {}, ctrlwebhook.NewServer(ctrlwebhook.Options{}))
	if m.LeaderElectionNamespace != "ml" || m.LeaderElectionID != "acme-holdfast-controller" {
		t.Errorf("the lease is %s/%s", m.LeaderElectionNamespace, m.LeaderElectionID)
	}
	for obj, by := range m.Cache.ByObject {
		if _, ok := obj.(*corev1.Secret); ok && by.Namespaces["ml"].FieldSelector.String() != "metadata.name=acme-holdfast-certs" {
			t.Errorf("secrets are read from %v", by.Namespaces)
		}
	}
	for _, wrong := range []place{{namespace: ""}, {namespace: "a b"}, {namespace: "ml", prefix: "acme"}, {namespace: "ml", prefix: "Acme-"}} {
		if err := wrong.check(); err == nil || !strings.HasPrefix(err.Error(), "--name") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if err := p.check(); err != nil {
		t.Error(err)
	}
}

// setByTheChart are the flags that follow from other values of the chart.
var setByTheChart = []string{"config", "agent-image", "agent-pull-policy", "agent-pull-secrets", "image-pull-secrets", "namespace", "name-prefix"}

// TestChartHasEveryFlag: the schema of the chart's values lists each flag, and each as a field of the configuration file.
func TestChartHasEveryFlag(t *testing.T) {
	raw, err := os.ReadFile("../../charts/holdfast/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Properties           map[string]node
		AdditionalProperties any
	}
	var schema node
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	for field, f := range configfile.Fields(command().Flags()) {
		if !slices.Contains(setByTheChart, f.Name) {
			want["flags"], want["config"] = append(want["flags"], f.Name), append(want["config"], field)
		}
	}
	for part, want := range want {
		values := schema.Properties["controller"].Properties[part]
		have := slices.Sorted(maps.Keys(values.Properties))
		slices.Sort(want)
		if !slices.Equal(have, want) || values.AdditionalProperties != false {
			t.Errorf("the chart's schema has in %s\n%v, the controller\n%v; others: %v", part, have, want, values.AdditionalProperties)
		}
	}
}
