package words

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fieldTerms are words of comments that look like names of code and are none of this tree: names of Kubernetes and of the field.
var fieldTerms = strings.Fields(`
	Dockerfile Guaranteed Markdown Prometheus gRPC
	FuzzName ReadFrom
	DataAuthority GPUHealth JSONPath WatchListCompression blockOwnerDeletion envFrom getPodsForJob groupName syncJob
	MaxItems listMapKey listType shortName`)

// plainWords begin a clause in lower case that says what a value means, or a clause of a sentence.
var plainWords = strings.Fields(`
	absent all both closed default empty ends it less nil none nor nothing null others so something that there these they too what which who zero`)

var (
	anyWord     = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	mixedCase   = regexp.MustCompile(`[a-z0-9][A-Z]`)
	inBackticks = regexp.MustCompile("`([A-Za-z]+)`")
	clauses     = regexp.MustCompile(`[.;] `)
	// subjects begin a clause that says what names are: "bound, size are", "ended: the job …".
	subjects = regexp.MustCompile(`^([a-z][A-Za-z0-9_]*)((?:, [a-z]\w*)*)(?: and ([a-z]\w*))?(?: is | are |: )`)
)

// source is a Go file with its comments; used are the identifiers and the words of strings in it.
type source struct {
	path string
	file *ast.File
	fset *token.FileSet
	used map[string]bool
}

// sources parses all Go files of the tree, and collects the words of files in other languages.
func sources(t *testing.T) (all []source, elsewhere map[string]bool) {
	t.Helper()
	root := filepath.Join("..", "..")
	elsewhere = map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == filepath.Join(root, "bin") || strings.HasPrefix(d.Name(), ".") && path != root) {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		switch filepath.Ext(path) {
		case ".go":
		case ".py", ".yaml", ".proto", ".sh", ".txt":
			text, err := os.ReadFile(path)
			for _, w := range anyWord.FindAllString(string(text), -1) {
				elsewhere[w] = true
			}
			return err
		case ".md": // designs name promises that tests refer to
			text, err := os.ReadFile(path)
			for _, m := range inBackticks.FindAllStringSubmatch(string(text), -1) {
				if strings.HasPrefix(path, filepath.Join(root, "docs", "designs")) {
					elsewhere[m[1]] = true
				}
			}
			return err
		default:
			return nil
		}
		s := source{path: strings.TrimPrefix(path, root+"/"), fset: token.NewFileSet(), used: map[string]bool{}}
		if s.file, err = parser.ParseFile(s.fset, path, nil, parser.ParseComments); err != nil {
			return err
		}
		all = append(all, s)
		if strings.HasPrefix(s.path, "internal/words/") {
			return nil
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
		return nil
	})
	if err != nil || len(all) < 500 {
		t.Fatalf("parsed %d files, %v", len(all), err)
	}
	return all, elsewhere
}

// TestCommentsNameWhatThereIs: a word of a comment that looks like a name, by a capital inside it or in mid-sentence, is a name of this
// tree, and so is the subject of a clause in lower case in the comment of a field, parameter or function.
func TestCommentsNameWhatThereIs(t *testing.T) {
	all, known := sources(t)
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

// lookLikeNames are words with a capital inside, or at their head in the middle of a sentence. Indented lines are code or tables.
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

// TestLookLikeNames is what the reading of comments takes for a name.
func TestLookLikeNames(t *testing.T) {
	for comment, want := range map[string]string{
		"Place answers. Nobody asks for a Refusal, or for\nLeave of planTimeout.\n\tCode here": "Refusal Leave planTimeout",
		"Sentence: One more; Two. (Three) of GPUs":                                             "GPUs",
	} {
		if got := strings.Join(lookLikeNames(comment), " "); got != want {
			t.Errorf("%q: %q, want %q", comment, got, want)
		}
	}
	if got := strings.Join(namedInLowerCase("bound, size and at are numbers. ended: the job; zero: none. It is x."), " "); got != "size bound at ended zero" {
		t.Errorf("in lower case: %q", got)
	}
}
