package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// clockUse returns the first call of package time, in the file, that reads or waits on the clock.
func clockUse(t *testing.T, path string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := ""
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == "time" {
			switch sel.Sel.Name {
			case "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick":
				found = "time." + sel.Sel.Name
			}
		}
		return true
	})
	return found
}

func TestClockUseSeesAClock(t *testing.T) {
	if got := clockUse(t, "testdata/clock.go.txt"); got != "time.Now" {
		t.Fatalf("clockUse = %q, want time.Now", got)
	}
}
