package launch

import (
	"regexp"
	"slices"
	"strings"
)

// Plain returns the commands that argv certainly runs: argv itself, or those of a shell's text if it has no branches, loops or functions. A
// word that only the shell can expand holds Later.
func Plain(argv []string) [][]string {
	if len(argv) == 0 {
		return nil
	}
	if !IsShell(argv[0]) {
		return [][]string{argv}
	}
	text, ok := shellText(argv[1:])
	if !ok {
		return nil
	}
	s := &shellReader{text: text}
	if !s.read() {
		return nil
	}
	return s.commands
}

// shellText returns the text of a shell's -c.
func shellText(args []string) (string, bool) {
	given := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' && arg[0] != '+' {
			return arg, given
		}
		if strings.HasPrefix(arg, "--") {
			continue
		}
		given = given || arg[0] == '-' && strings.Contains(arg, "c")
		if strings.HasSuffix(arg, "o") || strings.HasSuffix(arg, "O") { // the option's name is the next argument
			i++
		}
	}
	return "", false
}

// branching are the words after which a command may or may not run.
var branching = []string{"if", "then", "elif", "else", "fi", "for", "while", "until", "case", "esac", "do", "done", "function", "select", "{", "}", "!", "[", "[[", "test"}

// passing are the words that run the rest as a command.
var passing = []string{"exec", "nohup", "time", "command"}

var assignment = regexp.MustCompile(`^[A-Za-z_]\w*=`)

// shellReader splits a shell's text into commands and words.
type shellReader struct {
	text     string
	at       int
	commands [][]string
	words    []string
	word     strings.Builder
	inWord   bool
	// target: the next word is a redirection's target.
	target bool
}

// read reports whether the text is plain.
func (s *shellReader) read() bool {
	for ; s.at < len(s.text); s.at++ {
		c := s.text[s.at]
		rest := s.text[s.at+1:]
		switch {
		case c == ' ' || c == '\t' || c == '\r':
			s.endWord()
		case c == '(' || c == ')', strings.HasPrefix(s.text[s.at:], "||"), strings.HasPrefix(s.text[s.at:], "<<"):
			return false
		case c == '\n' || c == ';' || c == '&' || c == '|':
			if !s.endCommand() {
				return false
			}
		case c == '<' || c == '>':
			s.redirect()
		case c == '#' && !s.inWord:
			if n := strings.IndexByte(rest, '\n'); n >= 0 {
				s.at += n
			} else {
				s.at = len(s.text)
			}
		case c == '\\' && len(rest) > 0:
			if s.at++; rest[0] != '\n' {
				s.add(rest[:1])
			}
		case c == '\'' || c == '"':
			if !s.readQuoted(c) {
				return false
			}
		case c == '$' || c == '`':
			if !s.readSubstitution() {
				return false
			}
		default:
			s.add(s.text[s.at : s.at+1])
		}
	}
	return s.endCommand()
}

func (s *shellReader) add(text string) {
	s.word.WriteString(text)
	s.inWord = true
}

func (s *shellReader) endWord() {
	if s.inWord && !s.target {
		s.words = append(s.words, s.word.String())
	}
	if s.inWord {
		s.target = false
	}
	s.word.Reset()
	s.inWord = false
}

// endCommand reports whether the command that ends here is plain.
func (s *shellReader) endCommand() bool {
	s.endWord()
	words := s.words
	s.words, s.target = nil, false
	for len(words) > 0 && (assignment.MatchString(words[0]) || slices.Contains(passing, words[0])) {
		words = words[1:]
	}
	if len(words) == 0 {
		return true
	}
	s.commands = append(s.commands, words)
	return !slices.Contains(branching, words[0])
}

// redirect skips an operator such as 2>&1; the word after it is no argument.
func (s *shellReader) redirect() {
	if s.inWord && strings.Trim(s.word.String(), "0123456789") == "" { // a file descriptor
		s.word.Reset()
		s.inWord = false
	}
	s.endWord()
	for s.at+1 < len(s.text) && strings.IndexByte(">&|", s.text[s.at+1]) >= 0 {
		s.at++
	}
	s.target = true
}

// readQuoted reads up to the closing quote.
func (s *shellReader) readQuoted(quote byte) bool {
	s.inWord = true
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == quote:
			return true
		case quote == '"' && (c == '$' || c == '`'):
			if !s.readSubstitution() {
				return false
			}
		case quote == '"' && c == '\\' && s.at+1 < len(s.text) && strings.IndexByte("$`\"\\\n", s.text[s.at+1]) >= 0:
			if s.at++; s.text[s.at] != '\n' {
				s.add(s.text[s.at : s.at+1])
			}
		default:
			s.add(s.text[s.at : s.at+1])
		}
	}
	return false
}

// readSubstitution reads a variable or a substitution up to its end; its value is unknown.
func (s *shellReader) readSubstitution() bool {
	rest := s.text[s.at+1:]
	end := 0
	switch {
	case s.text[s.at] == '`':
		end = strings.IndexByte(rest, '`') + 1
	case strings.HasPrefix(rest, "("):
		end = closes(rest, '(', ')')
	case strings.HasPrefix(rest, "{"):
		end = closes(rest, '{', '}')
	default:
		for end < len(rest) && (rest[end] == '_' || rest[end] >= '0' && rest[end] <= '9' || rest[end]|0x20 >= 'a' && rest[end]|0x20 <= 'z') {
			end++
		}
		if end == 0 && len(rest) > 0 && strings.IndexByte("?#@*!$-", rest[0]) >= 0 {
			end = 1
		}
		if end == 0 {
			s.add("$")
			return true
		}
	}
	s.add(Later)
	s.at += end
	return end > 0
}

// closes returns where the bracket that text begins with is closed, 0: nowhere.
func closes(text string, open, end byte) int {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case open:
			depth++
		case end:
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}
