package words

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/tree"
)

const root = "../.."

// fieldTerms are words in comments that look like identifiers of this tree and are names of Kubernetes or of the field.
var fieldTerms = strings.Fields(`
	Dockerfile Guaranteed Markdown OpenTelemetry gRPC
	FuzzName ReadFrom
	DataAuthority GPUHealth WatchListCompression blockOwnerDeletion envFrom getPodsForJob groupName syncJob
	MaxItems listMapKey listType shortName`)

// plainWords begin, in lower case, a clause that explains a value, or a clause of a sentence.
var plainWords = strings.Fields(`
	absent all both closed default empty ends it less nil none nor nothing null others so something that there these they too what which who zero`)

var (
	anyWord     = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	mixedCase   = regexp.MustCompile(`[a-z0-9][A-Z]`)
	inBackticks = regexp.MustCompile("`([A-Za-z]+)`")
	clauses     = regexp.MustCompile(`[.;] `)
	// subjects begin a clause that explains names: "bound, size are", "ended: the job …".
	subjects = regexp.MustCompile(`^([a-z][A-Za-z0-9_]*)((?:, [a-z]\w*)*)(?: and ([a-z]\w*))?(?: is | are |: )`)
)

// source is a Go file with its comments; used are the identifiers and the words of strings in it.
type source struct {
	path string
	text string
	file *ast.File
	fset *token.FileSet
	used map[string]bool
}

// sources parses all Go files of the tree, in order.
func sources(t *testing.T, files map[string]string) (all []source) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(path) != ".go" {
			continue
		}
		s := source{path: path, text: files[path], fset: token.NewFileSet(), used: map[string]bool{}}
		var err error
		if s.file, err = parser.ParseFile(s.fset, path, s.text, parser.ParseComments); err != nil {
			t.Fatal(err)
		}
		if all = append(all, s); strings.HasPrefix(path, "internal/words/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				s.used[n.Name] = true
			case *ast.BasicLit:
				for _, w := range anyWord.FindAllString(n.Value, -1) {
					s.used[w] = true
				}
			}
			return true
		})
	}
	return all
}

// elsewhere returns the words of files in other languages, and the names in backticks in designs: properties to which tests refer.
func elsewhere(files map[string]string) map[string]bool {
	words := map[string]bool{}
	for path, text := range files {
		switch filepath.Ext(path) {
		case ".py", ".yaml", ".proto", ".sh", ".txt":
			for _, w := range anyWord.FindAllString(text, -1) {
				words[w] = true
			}
		case ".md":
			for _, m := range inBackticks.FindAllStringSubmatch(text, -1) {
				if strings.HasPrefix(path, "docs/designs/") {
					words[m[1]] = true
				}
			}
		}
	}
	return words
}

// TestCommentsNameWhatThereIs: a word in a comment that looks like a name, because of a capital inside it or in mid-sentence, is a name of
// this tree. So is the lower-case subject of a clause in the comment of a field, parameter or function.
func TestCommentsNameWhatThereIs(t *testing.T) {
	files := tree.Read(t, root)
	all, known := sources(t, files), elsewhere(files)
	folders := map[string]map[string]bool{}
	for _, s := range all {
		folder := filepath.Dir(s.path)
		if folders[folder] == nil {
			folders[folder] = map[string]bool{}
		}
		for name := range s.used {
			known[name], folders[folder][name] = true, true
		}
	}
	for _, term := range fieldTerms {
		if known[term] {
			t.Errorf("%s is a name of this tree: take it out of fieldTerms", term)
		}
		known[term] = true
	}
	isKnown := func(w string) bool { return known[w] || known[strings.TrimSuffix(w, "s")] }
	for _, s := range all {
		if ast.IsGenerated(s.file) || strings.HasPrefix(s.path, "internal/words/") {
			continue
		}
		for _, group := range s.file.Comments {
			for _, w := range lookLikeNames(group.Text()) {
				if !isKnown(w) {
					t.Errorf("%s: %q is no name of this tree", s.fset.Position(group.Pos()), w)
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			for _, doc := range docs(n) {
				for _, w := range namedInLowerCase(doc.Text()) {
					if !folders[filepath.Dir(s.path)][w] && !slices.Contains(plainWords, w) {
						t.Errorf("%s: %q is no name of this package", s.fset.Position(doc.Pos()), w)
					}
				}
			}
			return true
		})
	}
}

func docs(n ast.Node) (found []*ast.CommentGroup) {
	switch n := n.(type) {
	case *ast.Field:
		found = []*ast.CommentGroup{n.Doc, n.Comment}
	case *ast.FuncDecl:
		found = []*ast.CommentGroup{n.Doc}
	}
	return slices.DeleteFunc(found, func(g *ast.CommentGroup) bool { return g == nil })
}

// lookLikeNames returns words with a capital inside, or at their beginning in mid-sentence. Indented lines are code or tables, and are
// skipped.
func lookLikeNames(comment string) (found []string) {
	before := "."
	for line := range strings.Lines(comment) {
		if strings.HasPrefix(line, "+") || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    ") {
			before = "."
			continue
		}
		for _, at := range anyWord.FindAllStringIndex(line, -1) {
			w := line[at[0]:at[1]]
			if gap := strings.TrimRight(line[:at[0]], " \t\"(*`"); gap != "" {
				before = gap
			}
			middle := !strings.ContainsAny(before[len(before)-1:], ".:;?!|")
			capital := w[0] >= 'A' && w[0] <= 'Z' && len(w) > 1 && strings.ToUpper(w) != w
			if mixedCase.MatchString(w) || capital && middle {
				found = append(found, w)
			}
		}
		if line = strings.TrimSpace(line); line != "" {
			before = line
		} else {
			before = "."
		}
	}
	return found
}

func namedInLowerCase(comment string) (found []string) {
	for _, clause := range clauses.Split(strings.Join(strings.Fields(comment), " "), -1) {
		if m := subjects.FindStringSubmatch(clause); m != nil {
			for _, w := range append(strings.Split(m[2], ", "), m[1], m[3]) {
				if w != "" {
					found = append(found, w)
				}
			}
		}
	}
	return found
}

// TestLookLikeNames has examples of what counts as a name in a comment.
func TestLookLikeNames(t *testing.T) {
	for comment, want := range map[string]string{
		"Place answers. No caller asks for a Refusal, or for\nLeave of planTimeout.\n\tCode here": "Refusal Leave planTimeout",
		"Sentence: One more; Two. (Three) of GPUs":                                                "GPUs",
	} {
		if got := strings.Join(lookLikeNames(comment), " "); got != want {
			t.Errorf("%q: %q, want %q", comment, got, want)
		}
	}
	if got := strings.Join(namedInLowerCase("bound, size and at are numbers. ended: the job; zero: none. It is x."), " "); got != "size bound at ended zero" {
		t.Errorf("in lower case: %q", got)
	}
}
