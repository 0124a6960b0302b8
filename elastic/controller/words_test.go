package controller

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestElasticWordsAreTheVocabulary: the core must not import the API, so some words are declared in both. Each word of the core that the
// API shows is a constant of the API. Each code of a Cause in the API is one of the core.
func TestElasticWordsAreTheVocabulary(t *testing.T) {
	const api = "../../api/v1alpha1/"
	core := words(t, "../types.go", "../events.go", "../cause/types.go", "../replacements/termination.go", "../waiting/verdict.go")
	vocabulary, codes := words(t, api+"reasons.go", api+"run_types.go"), words(t, api+"reasons.go")
	if len(core) < 30 {
		t.Errorf("%d words of the core are found: %q", len(core), core)
	}
	for name, word := range core {
		if !slices.Contains(slices.Collect(maps.Values(vocabulary)), word) {
			t.Errorf("%s is %q in the core, and no constant of the vocabulary is", name, word)
		}
	}
	for name, word := range codes {
		if strings.HasPrefix(name, "Cause") && core[strings.TrimPrefix(name, "Cause")] != word {
			t.Errorf("%s is %q, which is no code of package cause", name, word)
		}
	}
}

// words returns the exported string constants of files, by name.
func words(t *testing.T, files ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !spec.Names[0].IsExported() {
				return true
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if out[spec.Names[0].Name], err = strconv.Unquote(lit.Value); err != nil {
					t.Fatal(err)
				}
			}
			return true
		})
	}
	return out
}
