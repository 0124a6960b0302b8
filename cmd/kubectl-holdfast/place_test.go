package main

import (
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func TestInstallationElsewhere(t *testing.T) {
	for _, c := range []struct{ namespace, prefix, wantNamespace, wantService string }{
		{"", "", "holdfast-system", v1alpha1.PreviewService},
		{"ml", "acme-", "ml", "https:acme-holdfast-scheduler-preview:preview"},
	} {
		t.Setenv("HOLDFAST_NAMESPACE", c.namespace)
		t.Setenv("HOLDFAST_NAME_PREFIX", c.prefix)
		if ownNamespace() != c.wantNamespace || ownService(v1alpha1.PreviewService) != c.wantService {
			t.Errorf("%+v: %s in %s", c, ownService(v1alpha1.PreviewService), ownNamespace())
		}
	}
}
