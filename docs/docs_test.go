// Package docs has only tests. The tests compare the pages in docs with the code. Each metric, condition reason, event
// and figure that must be documented is on its page. A page names none that does not exist.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/nodehealth"
)

var update = flag.Bool("update", false, "rewrite what is made from the code")

// sources returns the files of the product without tests.
func sources(t *testing.T) []*ast.File {
	t.Helper()
	var files []*ast.File
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "../test" || path == "../bin" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 100 {
		t.Fatalf("found %d files, so this test looks at the wrong tree", len(files))
	}
	return files
}

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// metric is one registered metric; kind and labels are empty if no single call in the source has them.
type metric struct {
	kind   string
	labels []string
}

var metricName = regexp.MustCompile(`^holdfast_[a-z0-9_]+$`)

// metricsIn finds the metrics of a file: every string in the form of a name, with its kind and labels if it is in a call such as
// prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: …}, labels).
func metricsIn(f *ast.File, into map[string]metric) {
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok {
			if name := text(lit); metricName.MatchString(name) && into[name].kind == "" {
				into[name] = metric{}
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		fun, ok := call.Fun.(*ast.SelectorExpr)
		opts, isOpts := call.Args[0].(*ast.CompositeLit)
		if !ok || !isOpts || !strings.HasPrefix(fun.Sel.Name, "New") {
			return true
		}
		for _, e := range opts.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok || fmt.Sprint(kv.Key) != "Name" {
				continue
			}
			if name := text(kv.Value); metricName.MatchString(name) {
				into[name] = metric{
					strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(fun.Sel.Name, "New"), "Vec"), "Func")),
					labelsOf(call),
				}
			}
		}
		return true
	})
}

func labelsOf(call *ast.CallExpr) []string {
	var labels []string
	for _, arg := range call.Args[1:] {
		if list, ok := arg.(*ast.CompositeLit); ok {
			for _, e := range list.Elts {
				labels = append(labels, text(e))
			}
		}
	}
	return labels
}

func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}

func TestMetricsPage(t *testing.T) {
	registered := map[string]metric{}
	for _, f := range sources(t) {
		metricsIn(f, registered)
	}
	if len(registered) < 5 {
		t.Fatalf("found %d metrics, so this test does not see them", len(registered))
	}
	reported := map[string]bool{}
	ticked := regexp.MustCompile("`([^`]+)`")
	for _, line := range strings.Split(page(t, "metrics.md"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 7 || !strings.HasPrefix(line, "| `") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		reported[name] = true
		m, ok := registered[name]
		if !ok {
			t.Errorf("docs/metrics.md lists %s, which no code registers", name)
			continue
		}
		var labels []string
		for _, l := range ticked.FindAllStringSubmatch(cells[3], -1) {
			labels = append(labels, l[1])
		}
		if kind := strings.TrimSpace(cells[2]); m.kind != "" && (kind != m.kind || !slices.Equal(labels, m.labels)) {
			t.Errorf("%s is a %s with labels %v, docs/metrics.md has a %s with %v", name, m.kind, m.labels, kind, labels)
		}
	}
	for name := range registered {
		if !reported[name] {
			t.Errorf("docs/metrics.md lacks %s: add a row", name)
		}
	}
}

// TestRunbooks: every reason, cause and alert that users can see has a section in the runbooks.
func TestRunbooks(t *testing.T) {
	runbooks := page(t, "runbooks.md")
	const begin, end = "<!-- catalogue -->\n", "<!-- end -->\n"
	head, rest, ok := strings.Cut(runbooks, begin)
	had, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/runbooks.md lacks %q or %q", begin, end)
	}
	want := catalogue()
	if had != want {
		if !*update {
			t.Error("docs/runbooks.md is older than the catalogue of nodehealth: go test ./docs -update")
		} else if err := os.WriteFile("runbooks.md", []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sections := map[string]bool{}
	for _, line := range strings.Split(head+want+tail, "\n") {
		if word, ok := strings.CutPrefix(line, "### "); ok {
			if sections[word] {
				t.Errorf("docs/runbooks.md has two sections %s", word)
			}
			sections[word] = true
		}
	}
	must, known := vocabulary(t)
	for _, m := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(page(t, "../manifests/monitoring/rules.yaml"), -1) {
		must, known[m[1]] = append(must, m[1]), true
	}
	for _, word := range must {
		if !sections[word] {
			t.Errorf("docs/runbooks.md has no section %s: add its meaning and the remedy", word)
		}
	}
	for section := range sections {
		if !known[section] {
			t.Errorf("docs/runbooks.md has a section %s, which is no word of the code", section)
		}
	}
}

// catalogue returns the part of the runbooks that is generated from the node daemon's catalogue.
func catalogue() string {
	var b strings.Builder
	for _, r := range nodehealth.Catalogue {
		text := fmt.Sprintf("%s: %s.", r.Action, r.Meaning)
		if len(r.Xids) > 0 {
			var codes []string
			for _, x := range r.Xids {
				codes = append(codes, strconv.Itoa(x))
			}
			text += fmt.Sprintf(" Xid %s.", strings.Join(codes, ", "))
		}
		fmt.Fprintf(&b, "### %s\n%s\n%s\n\n", r.Cause, strings.Join(filled(text, widest), "\n"), strings.Join(filled(r.Next, widest), "\n"))
	}
	return b.String()
}

// reported are types whose constants users read: reasons, the STATE of nodes, the PHASE of gangs.
var reported = []string{"Reason", "State", "GangPhase"}

// vocabulary returns the values of all constants named Reason… or Cause…, or of a type in reported, and every word in a string of the code.
func vocabulary(t *testing.T) (must []string, known map[string]bool) {
	t.Helper()
	known = map[string]bool{}
	for _, f := range sources(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				known[text(n)] = true
			case *ast.ValueSpec:
				name := n.Names[0].Name
				named := strings.HasPrefix(name, "Reason") || strings.HasPrefix(name, "Cause") || n.Type != nil && slices.Contains(reported, fmt.Sprint(n.Type))
				if named && len(n.Values) == 1 && text(n.Values[0]) != "" {
					must = append(must, text(n.Values[0]))
				}
			}
			return true
		})
	}
	if len(must) < 20 {
		t.Fatalf("found %d words, so this test does not see them", len(must))
	}
	return must, known
}

// TestKubectlPage: the page shows exactly what the commands print.
func TestKubectlPage(t *testing.T) {
	shown := page(t, "kubectl.md")
	part := func(file, from, to string) string {
		_, text, ok := strings.Cut(page(t, "../cmd/kubectl-holdfast/"+file), from)
		if to != "" {
			text, _, _ = strings.Cut(text, to)
		}
		if !ok || strings.TrimSpace(text) == "" {
			t.Fatalf("%s holds nothing after %q", file, from)
		}
		return strings.TrimSpace(text)
	}
	for name, text := range map[string]string{
		"nodes":                           part("nodes/testdata/trouble.txt", "$ nodes\n", "$ nodes --all"),
		"explain":                         part("explain/testdata/replaced.txt", "", "  12:05:02"),
		"explain, what is to be replaced": part("explain/testdata/replacement-pending.txt", "To be replaced", ""),
		"fabric":                          part("fabric/testdata/full.txt", "", ""),
		"preview, its exit codes":         "| 3 | admitted, but would not be placed now",
	} {
		if !strings.Contains(shown, text) {
			t.Errorf("docs/kubectl.md does not show what %s prints:\n%s", name, text)
		}
	}
}

// TestAnnotationsPage: every key that users may set (the first block of keys) has a row, and no other key has one.
func TestAnnotationsPage(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../api/v1alpha1/keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, d := range file.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || !block.Lparen.IsValid() || len(keys) > 0 {
			continue
		}
		for _, s := range block.Specs {
			for _, v := range s.(*ast.ValueSpec).Values {
				if sum, ok := v.(*ast.BinaryExpr); ok {
					name, err := strconv.Unquote(sum.Y.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					keys = append(keys, name)
				}
			}
		}
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `holdfast\\.dev/([a-z-]+)` \\|").FindAllStringSubmatch(page(t, "annotations.md"), -1) {
		rows = append(rows, m[1])
	}
	slices.Sort(keys)
	slices.Sort(rows)
	if len(keys) < 10 || !slices.Equal(keys, rows) {
		t.Errorf("docs/annotations.md has rows for %v, api/v1alpha1/keys.go has %v for users to set", rows, keys)
	}
}

// TestTheBudgetOfRestarts: pages with the number of restarts have the code's number.
func TestTheBudgetOfRestarts(t *testing.T) {
	reported := regexp.MustCompile(`(\w+)\s+restarts\s+(?:were |are )?without\s+progress`)
	want, seen := strconv.Itoa(protocol.RestartsWithoutProgress), 0
	for _, name := range []string{"architecture.md", "runbooks.md"} {
		for _, m := range reported.FindAllStringSubmatch(page(t, name), -1) {
			if number := m[1]; number == want {
				seen++
			} else if number != "many" {
				t.Errorf("%s says %q, and it is %s", name, m[0], want)
			}
		}
	}
	if seen < 4 {
		t.Errorf("found %d numbers, so this test misreads the pages", seen)
	}
}
