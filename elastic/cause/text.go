package cause

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

var (
	rankPrefix = regexp.MustCompile(`(?m)^\[rank\d+\]: ?`)
	// volatile are the parts of a message that differ between runs with the same bug.
	volatile = []struct {
		re *regexp.Regexp
		to string
	}{
		{regexp.MustCompile(`0x[0-9a-fA-F]+`), "0x"},
		{regexp.MustCompile(`\[?(?:\d{1,3}\.){3}\d{1,3}\]?(?::\d+)?`), "address"},
		{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?`), "time"},
		{regexp.MustCompile(`/tmp/[^\s'":]+`), "/tmp/"},
		{regexp.MustCompile(`(?i)\b(pid|port|thread|process)[ =:#]*\d+`), "$1"},
		{regexp.MustCompile(`\d{5,}`), "n"},
	}
	frame = regexp.MustCompile(`^\s*File "([^"]*)", line \d+, in `)
)

// Clean removes PyTorch's prefix of each line, and surrounding blanks.
func Clean(traceback string) string {
	return strings.TrimSpace(rankPrefix.ReplaceAllString(strings.ToValidUTF8(traceback, "?"), ""))
}

// Printable makes text safe for a terminal: line ends and tabs stay, and other unprintable characters, such as escape sequences that move
// the cursor or set a title, are written as in Go.
func Printable(text string) string {
	var b strings.Builder
	for i, r := range text {
		_, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// Tail returns the last whole lines of text that fit into limit bytes; if the last line alone is longer, its beginning.
func Tail(text string, limit int) string {
	text = strings.TrimRight(text, "\n ")
	if len(text) <= limit {
		return text
	}
	if i := strings.LastIndexByte(text, '\n'); len(text)-i-1 > limit {
		return Cut(text[i+1:], limit)
	}
	text = text[len(text)-limit-1:]
	return text[strings.IndexByte(text, '\n')+1:]
}

// Ends returns the first line of text, which says what it is about, and the last whole lines that fit with it into limit bytes.
func Ends(text string, limit int) string {
	const between = "\n…\n"
	text = strings.TrimRight(text, "\n ")
	first, rest, more := strings.Cut(text, "\n")
	if len(text) <= limit || !more {
		return Cut(text, limit)
	}
	first = Cut(first, limit/2)
	return first + between + Tail(rest, limit-len(first)-len(between))
}

// Cut shortens s to limit bytes without breaking a character.
func Cut(s string, limit int) string {
	const mark = "…"
	if len(s) <= limit {
		return s
	}
	s = s[:max(0, limit-len(mark))]
	for len(s) > 0 {
		if r, n := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || n != 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s + mark
}

const header = "Traceback (most recent call last):"

// chained are the lines between two tracebacks of one chain, the older one first.
var chained = []string{"During handling of the above exception", "The above exception was the direct cause"}

// rootError returns the message of the first exception in a traceback's last chain: an exception raised while another was handled is not
// the first error.
func rootError(traceback string) string {
	blocks := strings.Split(Clean(traceback), header)
	i := len(blocks) - 1
	for i > 0 && containsAny(blocks[i-1], chained) {
		i--
	}
	block := blocks[i]
	for _, mark := range chained {
		block, _, _ = strings.Cut(block, mark)
	}
	return lastError(block)
}

// lastError returns all that follows the last stack frame.
func lastError(block string) string {
	lines := strings.Split(strings.TrimSpace(block), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], "  ") { // source line or marker of the last frame
			return strings.Join(lines[i+1:], "\n")
		}
	}
	return strings.Join(lines, "\n")
}

// signatureLimit bounds the part of a message that Same compares.
const signatureLimit = 300

// Same reports whether two failures are one bug seen twice: the same code, exit code and message, without the parts of the message
// that change from run to run. The rank counts only if there is no traceback: a bug in the script may appear on another rank first.
func Same(a, b Cause) bool {
	if a.Code != b.Code || a.ExitCode != b.ExitCode {
		return false
	}
	as, bs := signature(a.Message), signature(b.Message)
	return as == bs && (a.Rank == b.Rank || strings.HasPrefix(as, "File "))
}

// signature returns the place of the last stack frame and the last line, normalised; only the last line if there is no stack frame.
func signature(message string) string {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	where := ""
	for i := len(lines) - 1; i >= 0; i-- {
		if frame.MatchString(lines[i]) {
			where = strings.TrimSpace(lines[i])
			break
		}
	}
	last := Cut(strings.TrimSpace(lines[len(lines)-1]), signatureLimit)
	s := where + "\n" + last
	for _, v := range volatile {
		s = v.re.ReplaceAllString(s, v.to)
	}
	return strings.TrimSpace(s)
}

// LastLine returns the last line of a message: in a traceback, the exception.
func LastLine(s string) string {
	return s[strings.LastIndexByte(s, '\n')+1:]
}
