package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// function matches a name in a table of recovery.md, method a name in its text.
var (
	function = regexp.MustCompile("`([A-Za-z.]+)`")
	method   = regexp.MustCompile("`([A-Za-z]+\\.[A-Za-z]+)`")
)

// TestRecovery: the functions in recovery.md are declared where the page says.
func TestRecovery(t *testing.T) {
	seen := 0
	for _, line := range strings.Split(page(t, "recovery.md"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(line, "`") {
			continue
		}
		room, named := strings.Trim(cells[1], " `"), cells[2]
		if !strings.Contains(cells[1], "`") {
			room, named = strings.Trim(cells[2], " `"), cells[3]
		}
		have := declared(t, filepath.Join("..", room))
		for _, m := range append(function.FindAllStringSubmatch(named, -1), method.FindAllStringSubmatch(cells[3], -1)...) {
			seen++
			if !have[m[1]] {
				t.Errorf("recovery.md: there is no %s in %s", m[1], room)
			}
		}
	}
	if seen < 30 {
		t.Fatalf("found %d functions, so this test misreads the page", seen)
	}
}

// declared returns the names of a package's functions, types, constants and variables, and its methods as Type.method.
func declared(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, f.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[n.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}

func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}
