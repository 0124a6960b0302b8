package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/tree"
)

// goTool replaces the go command. It records the fuzz target, and fails for one of them.
const goTool = `#!/bin/bash
for package; do :; done
echo "$package $6" >>"$FUZZED"
[ "$6" != "^$BROKEN\$" ]
`

// TestEveryFuzzTargetIsRun: fuzz.sh runs each target of the tree, also after a target that fails, and reports the failure. Each target has
// a committed corpus, so that unit tests run what fuzzing has found. Each corpus belongs to a target.
func TestEveryFuzzTargetIsRun(t *testing.T) {
	const broken = "FuzzClaims"
	dir := t.TempDir()
	fuzzed := filepath.Join(dir, "fuzzed")
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(goTool), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./fuzz.sh")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "FUZZED="+fuzzed, "BROKEN="+broken, "KEEP=")
	said, err := cmd.CombinedOutput()
	if err == nil || strings.Count(string(said), "FAILED") != 1 || !strings.Contains(string(said), broken) {
		t.Errorf("%s fails, and fuzz.sh says (%v): %s", broken, err, said)
	}
	text, err := os.ReadFile(fuzzed)
	if err != nil {
		t.Fatal(err)
	}
	run := strings.Split(strings.TrimSpace(string(text)), "\n")
	targets, corpora := fuzzTargets(t)
	for _, target := range targets {
		pkg, name, _ := strings.Cut(target, " ")
		if !slices.Contains(run, pkg+" ^"+name+"$") {
			t.Errorf("fuzz.sh does not run %s of %s", name, pkg)
		}
		if !slices.Contains(corpora, target) {
			t.Errorf("%s of %s has no corpus: run KEEP=1 hack/fuzz.sh %s and commit what it keeps", name, pkg, pkg)
		}
	}
	if len(run) != len(targets) || len(targets) == 0 {
		t.Errorf("fuzz.sh runs %d of %d targets", len(run), len(targets))
	}
	for _, corpus := range corpora {
		if !slices.Contains(targets, corpus) {
			t.Errorf("%s has a corpus but is not a target: remove it, or move it to the target's new name", corpus)
		}
	}
}

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// fuzzTargets are the targets of the tree's tests and those that have a corpus, each as "./package FuzzName".
func fuzzTargets(t *testing.T) (targets, corpora []string) {
	t.Helper()
	for path, text := range tree.Read(t, "..") {
		if filepath.Base(filepath.Dir(filepath.Dir(path))) == "fuzz" {
			target := filepath.Dir(path)
			corpora = append(corpora, "./"+filepath.Join(path, "../../../..")+" "+filepath.Base(target))
		}
		for _, m := range fuzzTarget.FindAllStringSubmatch(text, -1) {
			if strings.HasSuffix(path, "_test.go") {
				targets = append(targets, "./"+filepath.Dir(path)+" "+m[1])
			}
		}
	}
	slices.Sort(corpora)
	return targets, slices.Compact(corpora)
}
