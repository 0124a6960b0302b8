package launch

import (
	"regexp"
	"strings"
)

// value is the value v of an option, and the option as the user spelled it.
type value struct {
	v, as string
}

var negativeNumber = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)

// isOption reports whether argparse treats arg as an option, known or not: an argument with a space only if it names an option.
func isOption(arg string, deprecated bool) bool {
	switch {
	case len(arg) < 2 || arg[0] != '-' || negativeNumber.MatchString(arg):
		return false
	case !strings.Contains(arg, " "):
		return true
	case arg[1] != '-':
		return byShort(arg[1]) != nil
	}
	name, _, _ := strings.Cut(arg[2:], "=")
	f, could := byLong(name, deprecated)
	return f != nil || len(could) > 0
}

// options parses flags up to the first positional argument. That argument and all later ones belong to the script, without one -- directly
// before or after the first.
func options(args []string, deprecated bool) (map[string]value, []string, *Refusal) {
	given := map[string]value{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return given, args[i+1:], nil
		}
		if !isOption(arg, deprecated) || maybeFlag(arg) {
			positional := args[i:]
			if len(positional) > 1 && positional[1] == "--" {
				positional = append([]string{arg}, positional[2:]...)
			}
			return given, positional, nil
		}
		var used int
		var r *Refusal
		if strings.HasPrefix(arg, "--") {
			used, r = long(given, arg, args[i+1:], deprecated)
		} else {
			used, r = short(given, arg, args[i+1:], deprecated)
		}
		if r != nil {
			return nil, nil, r
		}
		i += used
	}
	return given, nil, nil
}

// long parses --name, --name=v or --name v and returns the number of further arguments used.
func long(given map[string]value, arg string, next []string, deprecated bool) (int, *Refusal) {
	name, v, inline := strings.Cut(arg[2:], "=")
	f, could := byLong(name, deprecated)
	if f == nil && len(could) > 0 {
		return 0, refuse("--"+name, "is ambiguous: it could be "+strings.Join(could, ", "), "write the flag in full")
	}
	if f == nil {
		return 0, refuse("--"+name, "is not a flag of torchrun that holdfast knows", RemedyPlain)
	}
	as := "--" + name
	if f.boolean {
		if inline {
			return 0, refuse(as, "takes no value", "write "+as)
		}
		given[f.name] = value{"1", as}
		return 0, nil
	}
	used := 0
	if !inline {
		if len(next) == 0 || isOption(next[0], deprecated) {
			return 0, refuse(as, "expects a value", "write "+as+"=VALUE")
		}
		v, used = next[0], 1
	}
	given[f.name] = value{v, as + "=" + v}
	return used, nil
}

// short parses a cluster such as -m, -t3, -mr 3.
func short(given map[string]value, arg string, next []string, deprecated bool) (int, *Refusal) {
	for i := 1; i < len(arg); i++ {
		as := "-" + string(arg[i])
		f := byShort(arg[i])
		if f == nil {
			return 0, refuse(as, "is not a flag of torchrun that holdfast knows", RemedyPlain)
		}
		if f.boolean {
			given[f.name] = value{"1", as}
			continue
		}
		if v := strings.TrimPrefix(arg[i+1:], "="); v != "" {
			given[f.name] = value{v, as + " " + v}
			return 0, nil
		}
		if len(next) == 0 || isOption(next[0], deprecated) {
			return 0, refuse(as, "expects a value", "write "+as+" VALUE")
		}
		given[f.name] = value{next[0], as + " " + next[0]}
		return 1, nil
	}
	return 0, nil
}

// withEnvironment adds PET_* variables for options that the command line lacks.
func withEnvironment(given map[string]value, env map[string]string) map[string]value {
	for _, f := range flags {
		if _, ok := given[f.name]; ok || f.noEnv {
			continue
		}
		if v, ok := env[f.envName()]; ok {
			given[f.name] = value{v, f.envName() + "=" + v}
		}
	}
	return given
}
