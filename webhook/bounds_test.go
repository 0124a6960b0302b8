//go:build !race

package webhook

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/internal/eventually"
)

// shapes are the elements of a shell text that a user writes so that parsing takes long.
var shapes = map[string]string{
	"words":     "a ",
	"quotes":    "'",
	"open":      "$(",
	"commands":  "a;",
	"slashes":   "\\",
	"variables": "A=1 ",
	"launchers": "torchrun a;",
	"deepspeed": "deepspeed a;",
	"here":      "<<a ",
	"shells":    "bash -c ",
	"comments":  "#\n",
	"groups":    "(",
}

// TestNoCommandTakesLong: an object may have 3 MiB. The webhook answers long before the API server stops waiting, whatever its command is.
// A text that is too long for any process is not parsed.
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
	commands := map[string]func(*corev1.Container){
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
	}
	for name, shape := range shapes {
		commands["shell: "+name] = shell(fill(shape))
	}
	for name, change := range commands {
		began := eventually.ProcessorTime(t)
		out := createJob(t.Context(), job(t, trainer(change)), Facts{})
		if took := eventually.ProcessorTime(t) - began; took > eventually.Slowdown*5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		if strings.HasPrefix(name, "shell") && !strings.Contains(said(out), "is longer than 128Ki") {
			t.Errorf("%s was read whole: %.200s", name, said(out))
		}
	}
}

// TestTheLongestShellTextsAreReadSoon: texts of the greatest length that a process can be started with: one, and as many as a command may
// have.
func TestTheLongestShellTextsAreReadSoon(t *testing.T) {
	const size = mostString - 1
	for name, shape := range shapes {
		text := strings.Repeat(shape, size/len(shape)+1)[:size]
		for _, texts := range []int{1, 8} {
			c := trainer(func(c *corev1.Container) {
				c.Command, c.Args = []string{"bash", "-c"}, slices.Repeat([]string{text}, texts)
			})
			began := eventually.ProcessorTime(t)
			out := createJob(t.Context(), job(t, c), Facts{})
			if took := eventually.ProcessorTime(t) - began; took > eventually.Slowdown*2*time.Second {
				t.Errorf("%d of %s took %v", texts, name, took)
			}
			if strings.Contains(said(out), "is longer than") || strings.Contains(said(out), "are longer than") {
				t.Errorf("%d of %s are not read: %.200s", texts, name, said(out))
			}
		}
	}
}
