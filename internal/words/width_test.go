package words

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"holdfast.dev/holdfast/internal/tree"
)

// widest is the most columns of a line of Go, so that a diff shows what changed.
const widest = 140

var (
	inQuotes   = regexp.MustCompile(`"(\\.|[^"\\])*"` + "|`[^`]*`")
	rowOfTable = regexp.MustCompile(`^\s*("[^"]*":\s*)?\{`)
	drawing    = regexp.MustCompile(`^\s*//(\t|  )`)
)

// TestWidthOfCode reads every line. Strings, rows of a test's table, and drawings and tables in comments may be wider.
func TestWidthOfCode(t *testing.T) {
	for _, s := range sources(t, tree.Read(t, root)) {
		if ast.IsGenerated(s.file) {
			continue
		}
		raw := rawLines(s)
		for i, line := range strings.Split(s.text, "\n") {
			if utf8.RuneCountInString(line) <= widest || raw[i+1] || drawing.MatchString(line) {
				continue
			}
			row := strings.HasSuffix(s.path, "_test.go") && rowOfTable.MatchString(line)
			if columns := utf8.RuneCountInString(inQuotes.ReplaceAllString(line, `""`)); columns > widest && !row {
				t.Errorf("%s:%d has %d columns beside its strings; break it at %d", s.path, i+1, columns, widest)
			}
		}
	}
}

// rawLines returns the lines of a file that belong to a raw string of several lines.
func rawLines(s source) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			first, last := s.fset.Position(lit.Pos()).Line, s.fset.Position(lit.End()).Line
			for l := first; l <= last && first < last; l++ {
				lines[l] = true
			}
		}
		return true
	})
	return lines
}
