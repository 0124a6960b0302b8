package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	hostPaths  = regexp.MustCompile(`hostPath: \{path: ([^,}]+)`)
	mountPaths = regexp.MustCompile(`mountPath: /host(/[^,}]+)`)
)

// seen returns the folders of the node that a manifest mounts below /host.
func seen(t *testing.T, manifest string) (folders []string) {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var volumes []string
	for _, m := range hostPaths.FindAllSubmatch(text, -1) {
		volumes = append(volumes, string(m[1]))
	}
	for _, m := range mountPaths.FindAllSubmatch(text, -1) {
		if slices.Contains(volumes, string(m[1])) {
			folders = append(folders, "/host"+string(m[1])+"/")
		}
	}
	return folders
}

// TestLibrariesAreSeen: each path where the library may be is in a folder of the node that the container mounts; on GKE the optional
// component mounts it. The default manifest mounts only folders that every node has, because on a read-only root a missing folder cannot be
// created.
func TestLibrariesAreSeen(t *testing.T) {
	in := func(path string, folders []string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(path, f) })
	}
	plain := seen(t, "../../manifests/node/daemonset.yaml")
	gke := append(seen(t, "../../manifests/node-gke/kustomization.yaml"), plain...)
	for _, path := range libraries {
		if strings.HasPrefix(path, "/") && !in(path, gke) {
			t.Errorf("%s is in none of %v", path, gke)
		}
		if strings.HasPrefix(path, "/host/") && strings.HasPrefix(path, "/host/home/") == in(path, plain) {
			t.Errorf("%s and what every node has: %v", path, plain)
		}
	}
	for system, path := range map[string]string{
		"Ubuntu":       "/host/usr/lib/" + triplet() + "/libnvidia-ml.so.1",
		"Debian":       "/host/usr/lib/" + triplet() + "/nvidia/current/libnvidia-ml.so.1",
		"RHEL":         "/host/usr/lib64/libnvidia-ml.so.1",
		"GPU Operator": "/host/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
		"GKE":          "/host/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
		"Talos":        "/host/usr/local/glibc/usr/lib/libnvidia-ml.so.1",
		"Bottlerocket": "/host/usr/lib/nvidia/tesla/libnvidia-ml.so.1",
	} {
		if !slices.Contains(libraries, path) {
			t.Errorf("%s has its library at %s, which is not searched", system, path)
		}
	}
}
