package webhook

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/launch"
)

// kubelets expands references letter by letter, as the kubelet does.
func kubelets(s string, value func(name string) string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		end := -1
		if strings.HasPrefix(s[i:], "$(") {
			end = strings.IndexByte(s[i:], ')')
		}
		switch {
		case strings.HasPrefix(s[i:], "$$"):
			b.WriteByte('$')
			i++
		case end > 0:
			b.WriteString(value(s[i+2 : i+end]))
			i += end
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// FuzzExpand reads lines NAME=VALUE as variables, each of which may refer to earlier ones, and the last line as the command. The result is
// what the kubelet makes of it. If the result would be too long, it is refused with field and remedy.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$", "$$", "$(A)", "$(A", "$$(A)", "A=1\nx$(B)y$(A)$", "A=ab\nB=$(A)$(A)\nC=$(B)$(B)\n$(C)$(C)", "HOLDFAST_X=1\n$(DB_SERVICE_HOST)", "=x\n$()"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		c := &corev1.Container{Command: lines[len(lines)-1:]}
		for _, l := range lines[:len(lines)-1] {
			name, value, _ := strings.Cut(l, "=")
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
		}
		got := readCommand(t.Context(), c, field.NewPath("containers").Index(0))
		env, bytes, references, most := map[string]string{}, 0, 0, 0
		value := func(name string) string {
			references++
			if v, ok := env[name]; ok {
				return v
			}
			if setLater(name) {
				return launch.Later
			}
			return "$(" + name + ")"
		}
		argv := ""
		for i, l := range lines {
			name, s, _ := strings.Cut(l, "=")
			if i == len(lines)-1 {
				s = l
			}
			out := kubelets(s, value)
			if env[name], argv = out, out; i == len(lines)-1 {
				delete(env, name)
			}
			if strings.Contains(s, "$") {
				bytes, most = bytes+len(out), max(most, len(out))
			}
			if bytes > mostCommand || most > mostString || references > mostReferences {
				if len(got.errs) != 1 || len(got.argv) > 0 {
					t.Fatalf("%d bytes, %d in one, %d references are taken: %v", bytes, most, references, got.errs)
				}
				if e := got.errs[0]; e.Field == "" || !strings.Contains(e.Detail, ": ") {
					t.Fatalf("the refusal names no field or no remedy: %v", e)
				}
				return
			}
		}
		if len(got.errs) > 0 || len(got.argv) != 1 || got.argv[0] != argv {
			t.Fatalf("%q becomes %q, %v; for the kubelet %q", text, got.argv, got.errs, argv)
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

// TestExpandIsBounded: no text takes long or grows large, whatever it contains.
func TestExpandIsBounded(t *testing.T) {
	for name, s := range map[string]string{
		"open for ever": strings.Repeat("$(", 3<<20),
		"open once":     strings.Repeat("$(A", 1<<20) + ")",
		"many small":    strings.Repeat("$(A)", 1<<20),
		"one long":      "$(" + strings.Repeat("b", 3<<20) + ")",
		"few large":     strings.Repeat("$(B)", 2000),
	} {
		x := &expander{vars: map[string]string{"A": "", "B": strings.Repeat("b", 100<<10)}, later: setLater}
		if got, err := x.expand(s); err == nil || len(got) > 0 {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
}

// TestExpandReadsOnce: a text of references that never end takes as long as another text with as many operators. A search for the end of
// each reference would take a hundred times as long. The least of several tries counts, because a busy machine may delay any of them.
func TestExpandReadsOnce(t *testing.T) {
	least := func(operator string) time.Duration {
		s, least := strings.Repeat(operator, mostString/2), time.Hour
		for range 10 {
			began := time.Now()
			x := &expander{later: setLater}
			if _, err := x.expand(s); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	endless, escaped := least("$("), least("$$")
	if t.Logf("references without an end take %s, dollar signs %s", endless, escaped); endless > 20*escaped {
		t.Errorf("references without an end take %s, dollar signs %s", endless, escaped)
	}
}

// TestRanksKnownLater: if memory is counted while the number of ranks is unknown, there is a warning.
func TestRanksKnownLater(t *testing.T) {
	later := trainer(func(c *corev1.Container) {
		c.Command, c.Args = []string{"torchrun"}, []string{"--nproc-per-node=$(JOB_COMPLETION_INDEX)", "train.py"}
	})
	if out := createJob(t.Context(), job(t, later), Facts{}); len(out.Errors) > 0 || !strings.Contains(said(out), "memory is counted for 2, the number of devices; write the number of ranks into annotation holdfast.dev/ranks") {
		t.Error(said(out))
	}
	if out := createJob(t.Context(), job(t, later, annotate(v1alpha1.AnnotationRanks, "4")), Facts{}); strings.Contains(said(out), "memory is counted") {
		t.Error(said(out))
	}
}
