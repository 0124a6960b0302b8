package docs

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// constants returns the numeric constants of a folder's product files, by name.
func constants(t *testing.T, folder string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			group, ok := d.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, s := range group.Specs {
				spec, ok := s.(*ast.ValueSpec)
				if !ok || len(spec.Values) != len(spec.Names) {
					continue
				}
				for i, name := range spec.Names {
					v := spec.Values[i]
					if n, ok := number(string(text[v.Pos()-f.FileStart : v.End()-f.FileStart])); ok {
						found[name.Name] = n
					}
				}
			}
		}
	}
	return found
}

// durations are the units of package time, in seconds.
var durations = map[string]time.Duration{"time.Millisecond": time.Millisecond, "time.Second": time.Second, "time.Minute": time.Minute, "time.Hour": time.Hour}

// number evaluates a constant expression of numbers and durations; durations are in seconds.
func number(expression string) (float64, bool) {
	scale := 1.0
	for unit, d := range durations {
		if strings.Contains(expression, unit) {
			expression, scale = strings.ReplaceAll(expression, unit, strconv.FormatInt(int64(d), 10)), float64(time.Second)
		}
	}
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
	if err != nil || v.Value == nil {
		return 0, false
	}
	f, _ := constant.Float64Val(constant.ToFloat(v.Value))
	return f / scale, constant.ToFloat(v.Value).Kind() == constant.Float || v.Value.Kind() == constant.Int
}

var figure = regexp.MustCompile(`^([0-9,]+(?:\.[0-9]+)?)( (KiB|MiB|GiB|TiB|s|min|h))?$`)

// inWords parses a figure as the page writes it.
func inWords(t *testing.T, text string) float64 {
	t.Helper()
	m := figure.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%q is no figure", text)
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * map[string]float64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "s": 1, "min": 60, "h": 3600}[m[3]]
}

// TestLimits: each figure of the page equals the code's.
func TestLimits(t *testing.T) {
	rows := 0
	for _, line := range strings.Split(page(t, "limits.md"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(strings.TrimSpace(cells[5]), "`") {
			continue
		}
		rows++
		at := strings.Trim(cells[5], " `")
		dot := strings.LastIndex(at, ".")
		folder, name := at[:dot], at[dot+1:]
		got, ok := constants(t, folder)[name]
		if want := inWords(t, strings.TrimSpace(cells[2])); !ok || got != want {
			t.Errorf("docs/limits.md has %s for %s, which is %v (there: %v)", strings.TrimSpace(cells[2]), at, got, ok)
		}
		if strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("docs/limits.md lacks what %s bounds, or what happens beyond", at)
		}
	}
	if rows < 30 {
		t.Errorf("found %d rows, so this test does not see them", rows)
	}
}
