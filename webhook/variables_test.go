package webhook

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/internal/settings"
)

// pagesOfOurs are pages on variables between parts of Holdfast, of its command line, and of development.
var pagesOfOurs = []string{"architecture.md", "dev-cluster.md", "benchmarks.md", "recovery.md", "chart.md"}

// ofRanks are variables that pages for users name because ranks have them.
var ofRanks = []string{"HOLDFAST_TOPOLOGY_DOMAIN", "HOLDFAST_STANDBY_FD", "HOLDFAST_ERROR_FILE", "HOLDFAST_PAGE", "HOLDFAST_LOOKS", "HOLDFAST_LOCAL_RANK",
	"HOLDFAST_ROOT"}

// TestVariablesThatPagesName: a variable that a page tells users to set is admitted, with the value on the page. Each other variable on a
// page is listed here as Holdfast's own.
func TestVariablesThatPagesName(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 15 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	named := regexp.MustCompile("\\b(HOLDFAST_[A-Z_]*[A-Z])(?:=([^`\\s]+))?")
	found := map[string]bool{}
	for _, page := range pages {
		if slices.Contains(pagesOfOurs, filepath.Base(page)) {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			name, value := m[1], m[2]
			if slices.Contains(ofRanks, name) || strings.HasPrefix(name, "HOLDFAST_UPDATE_") {
				continue
			}
			found[name] = true
			if value == "" {
				value = map[string]string{"HOLDFAST_PYTHON": "/opt/venv/bin/python3", "HOLDFAST_LAUNCHER_TIMEOUT_SECONDS": "600"}[name]
			}
			if value == "" {
				value = "1"
			}
			pod := injected(t, job(t, variable(name, value)))
			if got := envOf(pod, name); got != value {
				t.Errorf("%s has people set %s to %s, and the container has %q", page, name, value, got)
			}
		}
	}
	for _, name := range settings.Variables() {
		if !found[name] {
			t.Errorf("%s may be set, and no page says so", name)
		}
	}
}

// TestOurVariables: users may set no variable that injection writes. A value that is only known later is not checked here.
func TestOurVariables(t *testing.T) {
	for _, e := range injected(t, job(t, storage("ckpt"))).Spec.Containers[0].Env {
		if e.Name != "LR" && (!settings.IsOurVariable(e.Name) || slices.Contains(settings.Variables(), e.Name)) {
			t.Errorf("%s may be set by people and is written by injection", e.Name)
		}
	}
	later := trainer(func(c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: "HOLDFAST_OVERLAP", ValueFrom: &corev1.EnvVarSource{}}, corev1.EnvVar{Name: "HOLDFAST_REGISTER", Value: "$(HOLDFAST_OVERLAP)"})
	})
	if out := createJob(t.Context(), job(t, later), Facts{}); len(out.Errors) > 0 {
		t.Errorf("values known later: %s", said(out))
	}
}
