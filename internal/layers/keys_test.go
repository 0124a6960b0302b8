package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// alsoRead are packages that read an annotation which users write, with the reason.
var alsoRead = map[string]string{
	"webhook AnnotationEnabled":                        "it says what an annotation that comes too late does",
	"internal/kinds AnnotationEnabled":                 "a refusal names where it is written",
	"internal/membership AnnotationEnabled":            "a pod that is opted in is not one that is only placed",
	"elastic/coordinator/podtoken AnnotationContainer": "the webhook has stamped it on the template",
}

// TestPeoplesKeysAreParsedInOnePlace: no other package reads annotations by a key that users write.
func TestPeoplesKeysAreParsedInOnePlace(t *testing.T) {
	keys := userKeys(t)
	used := map[string]bool{}
	for _, p := range load(t) {
		if within(p.rel(), []string{"internal/settings", "test"}) {
			continue
		}
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), p.Dir+"/"+f, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				index, ok := n.(*ast.IndexExpr)
				if !ok {
					return true
				}
				if key, ok := index.Index.(*ast.SelectorExpr); ok && slices.Contains(keys, key.Sel.Name) {
					at := p.rel() + " " + key.Sel.Name
					if used[at] = true; alsoRead[at] == "" {
						t.Errorf("%s/%s reads %s: ask internal/settings", p.rel(), f, key.Sel.Name)
					}
				}
				return true
			})
		}
	}
	for at := range alsoRead {
		if !used[at] {
			t.Errorf("%s: it is not read there any more: remove it from the list", at)
		}
	}
}

// userKeys returns the names of the constants of keys that users write.
func userKeys(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), root+"api/v1alpha1/keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if sum, ok := spec.Values[0].(*ast.BinaryExpr); ok {
			if lit, ok := sum.Y.(*ast.BasicLit); ok {
				if name, err := strconv.Unquote(lit.Value); err == nil && settings.IsUserKey(v1alpha1.Prefix+name) {
					names = append(names, spec.Names[0].Name)
				}
			}
		}
		return true
	})
	if len(names) < 10 {
		t.Fatalf("found %d keys that people write, so this test misreads keys.go", len(names))
	}
	return names
}
