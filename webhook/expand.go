package webhook

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"holdfast.dev/holdfast/ckptagent/launch"
)

// Bounds of a string, and of what expansion may produce. Linux starts no process with an argument or a variable of 128 KiB or more,
// nor with 2 MiB of them.
const (
	mostString     = 128 << 10
	mostCommand    = 1 << 20
	mostReferences = 10_000
)

// expander resolves $(NAME) as the kubelet does: $$ is a dollar sign, and an unknown name stays as it is. A value that admission
// does not know becomes launch.Later.
type expander struct {
	vars map[string]string
	// later says of a name that is not in vars whether something sets it after admission.
	later func(name string) bool
	// bytes and references that were spent so far.
	bytes, references int
}

// expand returns s with its references resolved. The error names the exceeded bound.
func (x *expander) expand(s string) (string, error) {
	if len(s) > mostString { // references only make it longer, but for those to nothing
		return "", errTooLong
	}
	if !strings.Contains(s, "$") {
		return s, nil
	}
	var b strings.Builder
	last := strings.LastIndexByte(s, ')') - len(s) // counted from the end, which stays where it is
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		operator := s[i+1]
		s = s[i+1:]
		switch {
		case operator == '$':
			b.WriteByte('$')
			s = s[1:]
		case operator == '(' && last+len(s) > 0:
			x.references++
			end := strings.IndexByte(s, ')')
			b.WriteString(x.value(s[1:end]))
			s = s[end+1:]
		default:
			b.WriteByte('$')
		}
		if x.references > mostReferences {
			return "", fmt.Errorf("has more than %d references: write values out", mostReferences)
		}
		if b.Len() > mostString {
			break
		}
	}
	if b.Len() > mostString {
		return "", errTooLong
	}
	if x.bytes += b.Len(); x.bytes > mostCommand {
		return "", errors.New("and the fields before it are longer than 1Mi with their references resolved, too long to start a process: pass them in a file")
	}
	return b.String(), nil
}

var errTooLong = errors.New("is longer than 128Ki with its references resolved, too long to start a process: pass it in a file")

func (x *expander) value(name string) string {
	if v, ok := x.vars[name]; ok {
		return v
	}
	if x.later(name) {
		return launch.Later
	}
	return "$(" + name + ")"
}

// ofService matches the variables that the kubelet makes of the namespace's Services.
var ofService = regexp.MustCompile(`^[A-Z0-9_]+_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// setLater reports whether a variable that the container does not name may be set once the pod is made: by the
// Job controller, by injection, by the kubelet.
func setLater(name string) bool {
	return name == "JOB_COMPLETION_INDEX" || strings.HasPrefix(name, "HOLDFAST_") || ofService.MatchString(name)
}
