// Package page lays out text for a terminal: lines, paragraphs and tables with aligned columns, without colour. Unless
// a table is wide, its last two columns are cut so that the page has at most Width columns; cut text ends in "…". All
// text is printed without control characters, wherever it comes from.
package page

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"holdfast.dev/holdfast/elastic/cause"
)

// Width is the number of columns of a page.
const Width = 160

// Page collects lines.
type Page struct{ text strings.Builder }

// Linef adds one line.
func (p *Page) Linef(format string, args ...any) {
	p.text.WriteString(strings.TrimRight(cause.Printable(fmt.Sprintf(format, args...)), " "))
	p.text.WriteByte('\n')
}

// Wrapf adds one paragraph. The first line begins with lead, the others are indented by its width.
func (p *Page) Wrapf(lead, format string, args ...any) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(lead))
	line := lead
	for i, word := range strings.Fields(fmt.Sprintf(format, args...)) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > Width:
			p.Linef("%s", line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	p.Linef("%s", line)
}

// String returns the whole page.
func (p *Page) String() string { return p.text.String() }

// Table adds rows under a header, each after indent. Where wide is false, the last two columns are cut so
// that the page keeps its width; all others are never cut.
func (p *Page) Table(indent string, header []string, rows [][]string, wide bool) {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if !wide {
		narrow(widths, Width-utf8.RuneCountInString(indent))
	}
	for _, row := range append([][]string{header}, rows...) {
		var line strings.Builder
		line.WriteString(indent)
		for i, cell := range row {
			cell = Cut(cell, widths[i])
			line.WriteString(cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
			if i < len(row)-1 {
				line.WriteString("  ")
			}
		}
		p.Linef("%s", line.String())
	}
}

// narrow makes the last two columns narrower until all fit into width: the wider one first.
func narrow(widths []int, width int) {
	const least = 12
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	a, b := len(widths)-1, max(len(widths)-2, 0)
	for ; total > width && (widths[a] > least || widths[b] > least); total-- {
		if widths[a] < widths[b] {
			widths[b]--
		} else {
			widths[a]--
		}
	}
}

// Cut returns s in one line of at most n columns.
func Cut(s string, n int) string {
	s = cause.Printable(strings.Join(strings.Fields(s), " "))
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 1 {
		return ""
	}
	return string([]rune(s)[:n-1]) + "…"
}

// Count is "1 pod" or "3 pods".
func Count[N ~int | ~int32 | ~int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Dash returns s, or "-" for an empty text.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Age is how long ago something was, as kubectl writes it.
func Age(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(at)))
}

// Bytes is a size with its unit; above 1 Mi it is rounded up to whole Mi.
func Bytes(n int64) string {
	const mebi = 1 << 20
	if n > mebi {
		n = (n + mebi - 1) / mebi * mebi
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}
