//go:build linux

package launchers

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the results to docs/launchers.md")

const (
	page     = "../../docs/launchers.md"
	tableEnd = "<!-- end -->\n"
	untried  = "not tried"
)

// sheet is a table of the page: its marker, the text that explains its columns, its rows and columns.
type sheet struct {
	begin, header string
	rows          []row
	columns       func() []string
}

var (
	matrix = sheet{begin: "<!-- made by make test-launchers -->\n", rows: rows, columns: columnNames,
		header: "| launcher | start, finish | kill | script fails | drain |\n|---|---|---|---|---|\n"}
	trainers = sheet{begin: "<!-- hooks, made by make test-launchers -->\n", rows: hooks, columns: func() []string { return []string{"kills"} },
		header: "| trainer | all ranks killed twice |\n|---|---|\n"}
)

func columnNames() (names []string) {
	for _, c := range columns {
		names = append(names, c.name)
	}
	return names
}

// table returns the sheet in Markdown.
func (s sheet) table(cell func(row, column string) string) string {
	var b strings.Builder
	b.WriteString(s.header)
	for _, r := range s.rows {
		fmt.Fprintf(&b, "| %s |", r.name)
		for _, c := range s.columns() {
			fmt.Fprintf(&b, " %s |", cell(r.name, c))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (s sheet) split(t *testing.T) (before, between, after string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), s.begin)
	between, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table after %q", page, s.begin)
	}
	return before, between, after
}

// cells are the cells of the committed table.
func (s sheet) cells(t *testing.T) map[string]map[string]string {
	_, have, _ := s.split(t)
	out := map[string]map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(have, s.header)) {
		words := strings.Split(strings.TrimSpace(line), "|")
		if len(words) != len(s.columns())+3 {
			t.Fatalf("a line of the table is %q", line)
		}
		row := map[string]string{}
		for i, c := range s.columns() {
			row[c] = strings.TrimSpace(words[i+2])
		}
		out[strings.TrimSpace(words[1])] = row
	}
	return out
}

// write keeps the committed result of a cell that was not tested now.
func (s sheet) write(t *testing.T, results map[string]map[string]string) {
	before, _, after := s.split(t)
	old := s.cells(t)
	text := s.table(func(row, column string) string {
		return cmp.Or(results[row][column], old[row][column], untried)
	})
	if err := os.WriteFile(page, []byte(before+s.begin+text+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPage: the committed tables have the rows and columns of the tests, and no failed cell.
func TestPage(t *testing.T) {
	if *update {
		t.Skip("the tables are being made")
	}
	for _, s := range []sheet{matrix, trainers} {
		_, have, _ := s.split(t)
		found := s.cells(t)
		want := s.table(func(row, column string) string {
			if found[row][column] == untried {
				return untried
			}
			return "yes"
		})
		if have != want {
			t.Errorf("the table is\n%s\nwant\n%s\nmake test-launchers writes it", have, want)
		}
	}
}
