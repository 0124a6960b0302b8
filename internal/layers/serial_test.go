package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCoresStartNoGoroutine: cores start no goroutine, so the race detector can find nothing in their tests. The Makefile runs these tests
// without the race detector, and lists the same cores.
func TestCoresStartNoGoroutine(t *testing.T) {
	for _, p := range load(t) {
		if _, core := cores[p.rel()]; !core {
			continue
		}
		files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", p.rel(), len(files), err)
		}
		for _, path := range files {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			if at := concurrency(f); at != nil {
				t.Errorf("%s: core %s runs code concurrently", fset.Position(at.Pos()), p.rel())
			}
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^CORES :=((?:.*\\\n)*.*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("the Makefile lists no CORES")
	}
	listed := strings.Fields(strings.ReplaceAll(string(m[1]), "\\\n", " "))
	for name := range cores {
		if !slices.Contains(listed, name) {
			t.Errorf("core %s is missing in CORES of the Makefile", name)
		}
	}
	for _, name := range listed {
		if _, core := cores[name]; !core {
			t.Errorf("CORES of the Makefile lists %s, which is no core", name)
		}
	}
}

// concurrency returns the first go statement, parallel test, or import of a package that starts or guards goroutines.
func concurrency(f *ast.File) (at ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = n
		case *ast.ImportSpec:
			if p := strings.Trim(n.Path.Value, `"`); p == "sync" || p == "sync/atomic" || strings.HasPrefix(p, "golang.org/x/sync") {
				at = n
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "Parallel" {
				at = n
			}
		}
		return at == nil
	})
	return at
}
