package docs

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// widest is the greatest number of columns of a line of prose, so that a diff shows what changed.
const widest = 120

// TestWidthOfProse reads every page. Tables, code and lines with an address cannot be wrapped.
func TestWidthOfProse(t *testing.T) {
	pages := []string{"../README.md"}
	for _, match := range []string{"*.md", "*/*.md", "../examples/*/*.md"} {
		found, err := filepath.Glob(match)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 20 {
		t.Fatalf("found %d pages, so this test looks at the wrong tree", len(pages))
	}
	for _, name := range pages {
		code, n := false, 0
		for line := range strings.Lines(page(t, name)) {
			n++
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			exempt := code || strings.HasPrefix(strings.TrimSpace(line), "|") || strings.Contains(line, "://")
			if columns := utf8.RuneCountInString(line); columns > widest && !exempt {
				t.Errorf("%s:%d has %d columns; wrap prose at %d", name, n, columns, widest)
			}
		}
	}
}

// filled wraps a text at so many columns.
func filled(text string, columns int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
