package main

import (
	"crypto/tls"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// TestTheCacheKeepsLittleOfJobs: the cache has every Job of the cluster, most of which do not use Holdfast. So it stores little of each.
func TestTheCacheKeepsLittleOfJobs(t *testing.T) {
	o := managerOptions(defaults(), func(*tls.Config) {}, ctrlwebhook.NewServer(ctrlwebhook.Options{}))
	for kind, by := range o.Cache.ByObject {
		if _, ok := kind.(*batchv1.Job); !ok {
			continue
		}
		job := &batchv1.Job{}
		job.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{strings.Repeat("x", 1_000_000)}}}
		if by.Transform == nil {
			t.Fatal("Jobs are kept whole")
		}
		got, err := by.Transform(job)
		if err != nil {
			t.Fatal(err)
		}
		if kept := got.(*batchv1.Job); kept.Size() > 1000 {
			t.Fatalf("%d bytes of it are kept", kept.Size())
		}
		return
	}
	t.Fatal("Jobs have no transform: they are kept whole")
}
