package webhook

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/internal/eventually"
)

// TestNoCommandTakesLong: what an object can hold (the API server takes 3 MiB) is answered long before the API server stops
// waiting; a text that no process can be started with is not read.
func TestNoCommandTakesLong(t *testing.T) {
	const size = 2 << 20
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	many := func(s string, n int) (all []string) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	chain := func(value string, n int) (env []corev1.EnvVar) {
		env = append(env, corev1.EnvVar{Name: "V0", Value: value})
		for i := range n {
			env = append(env, corev1.EnvVar{Name: fmt.Sprint("V", i+1), Value: fmt.Sprintf("$(V%d)$(V%d)", i, i)})
		}
		return env
	}
	shell := func(text string) func(*corev1.Container) {
		return func(c *corev1.Container) { c.Command, c.Args = []string{"bash", "-c"}, []string{text} }
	}
	for name, change := range map[string]func(*corev1.Container){
		"doubled variables": func(c *corev1.Container) { c.Env = chain(strings.Repeat("x", 100), 30) },
		"open references":   func(c *corev1.Container) { c.Args = []string{fill("$(")} },
		"many references":   func(c *corev1.Container) { c.Env, c.Args = chain(strings.Repeat("x", 9<<10), 0), many("$(V0)", size/8) },
		"many flags":        func(c *corev1.Container) { c.Command, c.Args = []string{"torchrun"}, many("--nnodes=1", size/12) },
		"one flag of many":  func(c *corev1.Container) { c.Command, c.Args = []string{"torchrun"}, []string{fill("-")} },
		"many variables": func(c *corev1.Container) {
			for i := range size / 40 {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("PET_", i), Value: "x"})
			}
		},
		"shell: words":     shell(fill("a ")),
		"shell: quotes":    shell(fill("'")),
		"shell: open":      shell(fill("$(")),
		"shell: commands":  shell(fill("a;")),
		"shell: slashes":   shell(fill("\\")),
		"shell: variables": shell(fill("A=1 ")),
		"shell: launchers": shell(fill("torchrun a;")),
		"shell: deepspeed": shell(fill("deepspeed a;")),
		"shell: here":      shell(fill("<<a ")),
		"shell: shells":    shell(fill("bash -c ")),
		"shell: comments":  shell(fill("#\n")),
		"shell: groups":    shell(fill("(")),
	} {
		began := time.Now()
		out := MutateJob(job(t, trainer(change)), Facts{})
		if took := time.Since(began); took > eventually.Slowdown*5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		if strings.HasPrefix(name, "shell") && !strings.Contains(said(out), "is longer than 128Ki") {
			t.Errorf("%s was read whole: %.200s", name, said(out))
		}
	}
}
