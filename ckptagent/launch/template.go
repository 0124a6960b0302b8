package launch

import (
	"regexp"
	"strconv"
)

// placeholder is what Python's string.Template replaces.
var placeholder = regexp.MustCompile(`\$(?:\$|([_a-zA-Z][_a-zA-Z0-9]*)|\{([_a-zA-Z][_a-zA-Z0-9]*)\})`)

// substitute does what safe_substitute of Python's string.Template does: an unknown name stays as it is.
func substitute(text string, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		m := placeholder.FindStringSubmatch(found)
		if v, ok := values[m[1]+m[2]]; ok {
			return v
		}
		return found
	})
}

// localRankMacro stands in a script's arguments for the local rank of the process.
const localRankMacro = "${local_rank}"

// RankArgs are the arguments of one local rank's script. As torchrun does, it puts the local rank where an argument says so;
// deepspeed puts it before all others.
func (s Spec) RankArgs(local int) []string {
	if s.DeepSpeed != nil {
		if s.DeepSpeed.NoLocalRank {
			return s.Args
		}
		return append([]string{"--local_rank=" + strconv.Itoa(local)}, s.Args...)
	}
	values := map[string]string{"local_rank": strconv.Itoa(local)}
	args := make([]string, len(s.Args))
	for i, arg := range s.Args {
		args[i] = substitute(arg, values)
	}
	return args
}
