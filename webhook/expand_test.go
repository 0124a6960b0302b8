package webhook

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/launch"
)

// FuzzExpand: resolving references never fails on short text and leaves text without a dollar sign alone.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$", "$$", "$(A)", "$(A", "$$(A)", "x$(B)y$(A)$"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x := &expander{vars: map[string]string{"A": "1"}, later: setLater}
		got, err := x.expand(s)
		if err != nil && len(s) < mostReferences {
			t.Fatalf("%q: %v", s, err)
		}
		if !strings.Contains(s, "$") && got != s {
			t.Fatalf("%q became %q", s, got)
		}
	})
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "1", "EMPTY": "", "POD": launch.Later}
	for in, want := range map[string]string{
		"$(A)": "1", "x$(A)y": "x1y", "$$(A)": "$(A)", "$(B)": "$(B)", "$A": "$A", "$(A": "$(A", "$": "$", "$(EMPTY)": "", "$$$(A)": "$1", "$(A)$": "1$", "$x$(A)": "$x1",
		"$($(A)": "$($(A)", "$()": "$()", "x$(POD)": "x?", "$(JOB_COMPLETION_INDEX)": "?", "$(KUBERNETES_SERVICE_HOST)": "?", "$(DB_PORT_5432_TCP_ADDR)": "?", "$(IMPORT)": "$(IMPORT)",
	} {
		x := &expander{vars: env, later: setLater}
		if got, err := x.expand(in); strings.ReplaceAll(got, launch.Later, "?") != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

// TestExpandIsBounded: no text takes long or grows large, whatever it holds.
func TestExpandIsBounded(t *testing.T) {
	for name, s := range map[string]string{
		"open for ever": strings.Repeat("$(", 3<<20), "open once": strings.Repeat("$(A", 1<<20) + ")", "many small": strings.Repeat("$(A)", 1<<20), "one long": "$(" + strings.Repeat("b", 3<<20) + ")", "few large": strings.Repeat("$(B)", 2000),
	} {
		x := &expander{vars: map[string]string{"A": "", "B": strings.Repeat("b", 100<<10)}, later: setLater}
		if got, err := x.expand(s); err == nil || len(got) > 0 {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
}

// TestRanksKnownLater: memory that is counted without knowing the number of ranks is warned of.
func TestRanksKnownLater(t *testing.T) {
	later := trainer(func(c *corev1.Container) {
		c.Command, c.Args = []string{"torchrun"}, []string{"--nproc-per-node=$(JOB_COMPLETION_INDEX)", "train.py"}
	})
	if out := MutateJob(job(t, later), Facts{}); len(out.Errors) > 0 || !strings.Contains(said(out), "memory is counted for 2, by the GPUs; write the number into annotation holdfast.dev/ranks") {
		t.Error(said(out))
	}
	if out := MutateJob(job(t, later, annotate(v1alpha1.AnnotationRanks, "4")), Facts{}); strings.Contains(said(out), "memory is counted") {
		t.Error(said(out))
	}
}
