package words

import (
	"go/ast"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/tree"
)

// actingVerbs begin the names of methods that change their receiver and return a bool.
var actingVerbs = strings.Fields(`
	agree ask await claim count defer descend drop end ensure enter forget grow judge mark move note pin place read recheck record refuse reject remove renew reserve
	spend sweep take try visit yield`)

// memoized are queries that cache their result, which has no visible effect.
var memoized = []string{"ByClaim"}

// TestQuestionsDoNotAct: the name of a method that returns only a bool and assigns to its receiver begins with a verb. The name then shows
// that the call must not be behind && or ||, where it might not be executed.
func TestQuestionsDoNotAct(t *testing.T) {
	acting := 0
	for _, s := range sources(t, tree.Read(t, root)) {
		if strings.HasSuffix(s.path, "_test.go") || ast.IsGenerated(s.file) {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !answersYesOrNo(f) || !assignsToReceiver(f) {
				continue
			}
			acting++
			if verb := strings.ToLower(split(f.Name.Name)[0]); !slices.Contains(actingVerbs, verb) && !slices.Contains(memoized, f.Name.Name) {
				t.Errorf("%s: %s changes its receiver, and its name does not begin with a verb that says so", s.fset.Position(f.Pos()), f.Name.Name)
			}
		}
	}
	if acting < 10 {
		t.Fatalf("found %d methods, so this test does not see them", acting)
	}
}

func answersYesOrNo(f *ast.FuncDecl) bool {
	if f.Recv == nil || f.Body == nil || f.Type.Results == nil || len(f.Type.Results.List) != 1 {
		return false
	}
	id, ok := f.Type.Results.List[0].Type.(*ast.Ident)
	return ok && id.Name == "bool"
}

// assignsToReceiver reports whether a method assigns to a field of a pointer receiver, or to an element of one, outside of function
// literals.
func assignsToReceiver(f *ast.FuncDecl) (found bool) {
	of := f.Recv.List[0]
	if _, pointer := of.Type.(*ast.StarExpr); !pointer || len(of.Names) == 0 {
		return false
	}
	within := func(e ast.Expr) bool {
		_, plain := e.(*ast.Ident)
		return !plain && base(e) == of.Names[0].Name
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.AssignStmt:
			found = found || slices.ContainsFunc(n.Lhs, within)
		case *ast.IncDecStmt:
			found = found || within(n.X)
		case *ast.CallExpr:
			id, builtin := n.Fun.(*ast.Ident)
			found = found || builtin && id.Name == "delete" && within(n.Args[0])
		}
		return true
	})
	return found
}

// base returns the variable at the start of an expression such as g.x[i].y.
func base(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
