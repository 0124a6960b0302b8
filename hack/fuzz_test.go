package hack

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goTool stands in for go: it writes down what is to be fuzzed, and fails for one target.
const goTool = `#!/bin/bash
for package; do :; done
echo "$package $6" >>"$FUZZED"
[ "$6" != "^$BROKEN\$" ]
`

// TestEveryFuzzTargetIsRun: fuzz.sh runs each target of the tree, also after one that fails, which it names; each has a corpus that is
// kept, so that unit tests try what fuzzing has found; and no corpus is left of a target that is no more.
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
		t.Errorf("fuzz.sh runs %d targets of %d", len(run), len(targets))
	}
	for _, corpus := range corpora {
		if !slices.Contains(targets, corpus) {
			t.Errorf("a corpus is kept of %s, which is no target: remove it, or move it to the target's new name", corpus)
		}
	}
}

// fuzzTargets are the targets of the tree's tests and those that have a corpus, each as "./package FuzzName".
func fuzzTargets(t *testing.T) (targets, corpora []string) {
	t.Helper()
	files := token.NewFileSet()
	if err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(name, ".") && path != "..":
			return filepath.SkipDir
		case !d.IsDir() && filepath.Base(filepath.Dir(filepath.Dir(path))) == "fuzz":
			target := filepath.Dir(path)
			corpora = append(corpora, packageOf(target, 3)+" "+filepath.Base(target))
		case strings.HasSuffix(name, "_test.go"):
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
					targets = append(targets, packageOf(path, 1)+" "+f.Name.Name)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(corpora)
	return targets, slices.Compact(corpora)
}

// packageOf is the package's folder, so many levels above a path, as seen from the tree's root.
func packageOf(path string, levels int) string {
	for range levels {
		path = filepath.Dir(path)
	}
	return "./" + strings.TrimPrefix(path, "../")
}
