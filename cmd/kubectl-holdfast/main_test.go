package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// TestWrongWords: for wrong arguments the usage of the right command is printed, before any cluster is queried.
func TestWrongWords(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	for _, c := range []struct{ line, want string }{
		{"explain", "kubectl holdfast explain job/NAME"},
		{"explain job train", "kubectl holdfast explain job/train"},
		{"explain -A job/a", "leave out job/a"},
		{"explain -l a=b=c", "found '='"},
		{"explain job/a -o jsonpath={.x", "unclosed action"},
		{"nodes -l a=b=c", "found '='"},
		{"report", "kubectl holdfast report job/NAME"},
		{"report job/a", "set KUBECONFIG"},
		{"version 2", "version takes no names"},
		{"explain job/a job/b", "one job or gang at a time"},
		{"explain job/a -o table", "unknown output format"},
		{"explain --nosuch job/a", "see kubectl holdfast explain --help"},
		{"nodes n1", "with --all every one"},
		{"check", "name one job: kubectl holdfast check KIND/NAME"},
		{"check job/a --now --undo", "--undo withdraws a request: leave out --now"},
		{"evict", "name one node or one pod"},
		{"evict node n1", "name one node or one pod"},
		{"evict job/a", "use node/NAME or pod/NAME"},
		{"evict node/n1", "--reason is missing"},
		{"evict node/n1 --reason r --for 7d", "see kubectl holdfast evict --help"},
		{"evict node/n1 --reason r --for 5s", "give a time from 1m to 720h"},
		{"evict node/n1 --undo --now", "leave out --reason and --now"},
		{"evict node/n1 --reason r", "set KUBECONFIG"},
		{"preview job.yaml", "kubectl holdfast preview -f job.yaml"},
		{"preview", "-f job.yaml"},
		{"fabric rack", "with --level one"},
		{"fabric --most 101", "--most 101: use 0 to 100"},
		{"nosuch", "unknown command"},
		{"ckpt", "ckpt ls job/NAME"},
		{"ckpt rm", "use ckpt ls, verify, pin, unpin or export"},
		{"ckpt ls", "--dir DIR"},
		{"ckpt ls job train", "kubectl holdfast ckpt ls job/train"},
		{"ckpt verify job/a job/b", "one job or gang at a time"},
		{"ckpt verify job/a --step -1", "give the number of a step"},
		{"ckpt ls job/a --step 1", "see kubectl holdfast ckpt ls --help"},
		{"ckpt ls job/a -o xml", "use one of text, wide"},
		{"ckpt verify job/a", "set KUBECONFIG"},
		{"nodes", "set KUBECONFIG"},
		{"doctor team-a", "the namespace that -n names"},
		{"doctor --try --before-uninstall", "leave one of them out"},
		{"doctor --timeout 1ms", "give a time from 1s"},
		{"doctor -o xml", "use one of text, wide"},
		{"doctor", "set KUBECONFIG"},
		{"explain job/a", "set KUBECONFIG"},
	} {
		var out bytes.Buffer
		cmd := command(genericclioptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
		cmd.SetArgs(strings.Fields(c.line))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "arg(s)") {
			t.Errorf("%s: %v, want an error with %q", c.line, err, c.want)
		}
	}
}
