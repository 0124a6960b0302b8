package page

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTableKeepsTheWidth(t *testing.T) {
	long := strings.Repeat("word ", 60)
	for _, wide := range []bool{false, true} {
		p := &Page{}
		p.Table("  ", []string{"NAME", "ONE", "TWO"}, [][]string{{"a", long, "short"}, {"b", "x", long}}, wide)
		cut := strings.Contains(p.String(), "…")
		widest := 0
		for _, line := range strings.Split(p.String(), "\n") {
			widest = max(widest, utf8.RuneCountInString(line))
		}
		if wide && (cut || widest <= Width) || !wide && (!cut || widest > Width) {
			t.Errorf("wide %v: %d columns, cut %v:\n%s", wide, widest, cut, p)
		}
	}
}

func TestWrap(t *testing.T) {
	p := &Page{}
	p.Wrapf("  - ", "%s", strings.Repeat("word ", 60))
	lines := strings.Split(strings.TrimSpace(p.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[1], "    word") || utf8.RuneCountInString(lines[0]) > Width {
		t.Errorf("%q", lines)
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		Count(1, "pod", "pods"): "1 pod", Count(int64(0), "pod", "pods"): "0 pods", Dash(""): "-", Dash("a"): "a",
		Cut("one\n two", 20): "one two", Cut("abcdef", 4): "abc…", Cut("a", 0): "", Bytes(64 << 20): "64Mi", Bytes(64<<20 + 1): "65Mi", Bytes(4096): "4Ki",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestTerminalsObeyNothing: control characters in texts of jobs and nodes are shown as text, so that a terminal does not act on them.
func TestTerminalsObeyNothing(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;x\a\r\u202e"
	p := &Page{}
	p.Linef("%s", hostile)
	p.Wrapf("  - ", "%s", hostile)
	p.Table("", []string{"A", "B"}, [][]string{{hostile, hostile}}, false)
	if got := p.String(); strings.ContainsAny(got, "\x1b\a\r\u202e") || !strings.Contains(got, `\x1b[2J`) {
		t.Errorf("%q", got)
	}
}
