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

var update = flag.Bool("update", false, "write what was found into docs/launchers.md")

const (
	page       = "../../docs/launchers.md"
	tableBegin = "<!-- made by make test-launchers -->\n"
	tableEnd   = "<!-- end -->\n"
)

// header and its columns, which explain those of the matrix.
const header = "| launcher | start, finish | kill | script fails | drain |\n|---|---|---|---|---|\n"

// table is the matrix in Markdown.
func table(cell func(row, column string) string) string {
	var b strings.Builder
	b.WriteString(header)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", cell(r.name, c.name))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func splitPage(t *testing.T) (before, between, after string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), tableBegin)
	between, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	return before, between, after
}

// cells are those of the table that is checked in.
func cells(t *testing.T) map[string]map[string]string {
	_, have, _ := splitPage(t)
	out := map[string]map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(have, header)) {
		words := strings.Split(strings.TrimSpace(line), "|")
		if len(words) != len(columns)+3 {
			t.Fatalf("a line of the table is %q", line)
		}
		row := map[string]string{}
		for i, c := range columns {
			row[c.name] = strings.TrimSpace(words[i+2])
		}
		out[strings.TrimSpace(words[1])] = row
	}
	return out
}

const untried = "not tried"

// writeTable keeps what was found before where nothing was tried now.
func writeTable(t *testing.T, results map[string]map[string]string) {
	before, _, after := splitPage(t)
	old := cells(t)
	text := table(func(row, column string) string {
		return cmp.Or(results[row][column], old[row][column], untried)
	})
	if err := os.WriteFile(page, []byte(before+tableBegin+text+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPage: the table that is checked in has the launchers and columns of the matrix, and nothing in it has failed.
func TestPage(t *testing.T) {
	if *update {
		t.Skip("the table is being made")
	}
	_, have, _ := splitPage(t)
	found := cells(t)
	want := table(func(row, column string) string {
		if found[row][column] == untried {
			return untried
		}
		return "yes"
	})
	if have != want {
		t.Errorf("the table is\n%s\nwant\n%s\nmake test-launchers writes it", have, want)
	}
}
