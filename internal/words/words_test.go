package words

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/tree"
)

// everywhere is the scope of a word that is retired in all names.
const everywhere = ""

// retired are words that docs/glossary.md replaces by others. Each of them had one meaning, so a name that contains it is an error. There
// are at most 30: a word with other good uses does not belong here. under is the folder in which the word is retired.
var retired = map[string]struct{ instead, under string }{
	"births":   {"slot gaps", everywhere},
	"census":   {"member counts", "gang"},
	"comeback": {"recurrence", everywhere},
	"crew":     {"node load", everywhere},
	"crews":    {"node loads", everywhere},
	"deaf":     {"partition suspected", everywhere},
	"deserted": {"coordinator timeout", everywhere},
	"doom":     {"pending replacement", everywhere},
	"doomed":   {"pending replacement", everywhere},
	"dooms":    {"pending replacements", everywhere},
	"errand":   {"task", everywhere},
	"forlorn":  {"generation timeout", everywhere},
	"frontier": {"reclaimBelow", everywhere},
	"glance":   {"peek", everywhere},
	"muster":   {"list", everywhere},
	"overstay": {"overrun", everywhere},
	"pardons":  {"excused", everywhere},
	"patience": {"timeout", everywhere},
	"roster":   {"snapshot", everywhere},
	"salvage":  {"post-halt copy", everywhere},
	"salvaged": {"copied after halt", everywhere},
	"scout":    {"plan cycle", everywhere},
	"seat":     {"assignment", everywhere},
	"seats":    {"assignments", everywhere},
	"sought":   {"slot holder", everywhere},
}

func TestRetiredWordsStayAway(t *testing.T) {
	if len(retired) > 30 {
		t.Errorf("%d words are retired: keep those that a name would hold only by relapse", len(retired))
	}
	for path, text := range tree.Read(t, root) {
		if strings.HasPrefix(path, "internal/words/") {
			continue
		}
		for _, name := range append(names(t, path, text), filepath.Base(path)) {
			for _, word := range split(name) {
				r, found := retired[word]
				if found && (r.under == everywhere || strings.HasPrefix(path, r.under+"/")) {
					t.Errorf("%s: %q: instead of %q this project says %q; see docs/glossary.md", path, name, word, r.instead)
				}
			}
		}
	}
}

// names returns the names in a file that users or programs see.
func names(t *testing.T, path, text string) []string {
	t.Helper()
	golden := slices.Contains(strings.Split(filepath.ToSlash(path), "/"), "testdata")
	if !golden && filepath.Ext(path) != ".go" && filepath.Ext(path) != ".proto" {
		return nil
	}
	switch filepath.Ext(path) {
	case ".go":
		f, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		return declared(f)
	case ".proto":
		return uncommented(text, "//")
	case ".txt", ".yaml", ".json":
		return uncommented(text, "#")
	}
	return nil
}

// uncommented returns the words of all lines without comments.
func uncommented(text, comment string) (words []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, comment)
		words = append(words, strings.Fields(line)...)
	}
	return words
}

// constant matches a reason, a condition or a metric.
var constant = regexp.MustCompile(`^"([A-Z][A-Za-z]+|holdfast_[a-z0-9_]+)"$`)

// declared returns the names that a file declares, the JSON names of its fields, and its constants for programs.
func declared(f *ast.File) []string {
	all := []string{f.Name.Name}
	add := func(of ...ast.Expr) {
		for _, e := range of {
			if id, ok := e.(*ast.Ident); ok {
				all = append(all, id.Name)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				add(id)
			}
		case *ast.Field:
			for _, id := range n.Names {
				add(id)
			}
			if n.Tag != nil {
				name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(n.Tag.Value, "`")).Get("json"), ",")
				all = append(all, name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(n.Lhs...)
			}
		case *ast.RangeStmt:
			add(n.Key, n.Value)
		case *ast.BasicLit:
			if constant.MatchString(n.Value) {
				all = append(all, n.Value)
			}
		}
		return true
	})
	return all
}

var word = regexp.MustCompile(`[A-Z]+(?:[^A-Za-z]|$)|[A-Z]*[a-z]+`)

// split splits a name at capitals and at characters that are not letters.
func split(name string) (words []string) {
	for _, w := range word.FindAllString(name, -1) {
		words = append(words, strings.ToLower(strings.TrimRight(w, "_-.:0123456789\"/")))
	}
	return words
}

func TestSplit(t *testing.T) {
	for name, want := range map[string]string{
		"doomTime": "doom time", "PodDoomed": "pod doomed", "holdfast_nodes_deaf": "holdfast nodes deaf", "doom-dead.txt": "doom dead txt",
		"leaseURL": "lease url", "seat": "seat", "noSeats": "no seats", "json:\"frontier\"": "json frontier",
	} {
		if got := strings.Join(split(name), " "); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}
