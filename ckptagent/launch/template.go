package launch

import (
	"regexp"
	"strconv"
)

// placeholder matches what Python's string.Template replaces.
var placeholder = regexp.MustCompile(`\$(?:\$|([_a-zA-Z][_a-zA-Z0-9]*)|\{([_a-zA-Z][_a-zA-Z0-9]*)\})`)

// substitute acts like safe_substitute of Python's string.Template: an unknown name is left unchanged.
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

// localRankMacro is the placeholder of the local rank in a script's arguments.
const localRankMacro = "${local_rank}"

// RankArgs returns the arguments of one local rank's script. Like torchrun, it replaces the macro for the local rank; for deepspeed, it
// puts the local rank first.
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
