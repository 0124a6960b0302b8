package main

import (
	"crypto/tls"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
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

// TestChartHasEveryFlag: the schema of the chart's values lists each flag.
func TestChartHasEveryFlag(t *testing.T) {
	raw, err := os.ReadFile("../../charts/holdfast/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct{ Properties map[string]node }
	var schema node
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	var have, want []string
	for name := range schema.Properties["controller"].Properties["flags"].Properties {
		have = append(have, name)
	}
	command().Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains(setByTheChart, f.Name) {
			want = append(want, f.Name)
		}
	})
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("the chart's schema has the flags\n%v, the controller\n%v", have, want)
	}
}
