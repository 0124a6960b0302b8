package launch

import (
	"path"
	"regexp"
	"strings"
)

var pythonName = regexp.MustCompile(`^python(\d+(\.\d+)*t?)?$`)

// split separates the interpreter and its flags from the launcher's command line; rest[0] is the launcher's name ("torchrun",
// "torch.distributed.run" or "torch.distributed.launch").
func split(argv []string) (python, rest []string, ok bool) {
	if len(argv) == 0 {
		return nil, nil, false
	}
	base := path.Base(argv[0])
	if base == "torchrun" {
		return nil, append([]string{"torchrun"}, argv[1:]...), true
	}
	if !pythonName.MatchString(base) {
		return nil, nil, false
	}
	python = []string{argv[0]}
	for i := 1; i < len(argv); i++ {
		arg := argv[i]
		if arg == "-" || arg == "--" || !strings.HasPrefix(arg, "-") {
			if path.Base(arg) == "torchrun" {
				return python, append([]string{"torchrun"}, argv[i+1:]...), true
			}
			return nil, nil, false
		}
		if arg == "--check-hash-based-pycs" && i+1 < len(argv) {
			python = append(python, arg, argv[i+1])
			i++
			continue
		}
		kept, module, takes := pythonFlag(arg)
		switch {
		case module == nil && takes && i+1 < len(argv):
			python = append(python, arg, argv[i+1])
			i++
		case module == nil:
			python = append(python, arg)
		default:
			if kept != "" {
				python = append(python, kept)
			}
			name, after := *module, argv[i+1:]
			if name == "" {
				if len(after) == 0 {
					return nil, nil, false
				}
				name, after = after[0], after[1:]
			}
			if name != "torch.distributed.run" && name != deprecatedLauncher && name != deepSpeedLaunch {
				return nil, nil, false
			}
			return python, append([]string{name}, after...), true
		}
	}
	return nil, nil, false
}

// pythonFlag parses one cluster of interpreter flags. module is set at -m: the rest of the argument, or empty if the next argument is the
// module; kept is what precedes it. takes: the next argument belongs to the cluster (-W, -X). A -c yields a module that is no launcher.
func pythonFlag(arg string) (kept string, module *string, takes bool) {
	if strings.HasPrefix(arg, "--") {
		return arg, nil, false
	}
	for i := 1; i < len(arg); i++ {
		switch arg[i] {
		case 'W', 'X':
			return arg, nil, i == len(arg)-1
		case 'c':
			none := "-c"
			return "", &none, false
		case 'm':
			if i > 1 {
				kept = arg[:i]
			}
			name := arg[i+1:]
			return kept, &name, false
		}
	}
	return arg, nil, false
}

// checkInterpreter refuses interpreter flags that disable PYTHONPATH or the site module, through which client and standbys are loaded.
func checkInterpreter(python []string) *Refusal {
	for i := 1; i < len(python); i++ {
		arg := python[i]
		if prev := python[i-1]; i > 1 && (strings.HasSuffix(prev, "X") || strings.HasSuffix(prev, "W")) && !strings.HasPrefix(prev, "--") {
			continue
		}
		if strings.HasPrefix(arg, "--") || !strings.HasPrefix(arg, "-") {
			continue
		}
		for _, c := range arg[1:] {
			if c == 'W' || c == 'X' {
				break
			}
			if c == 'E' || c == 'I' || c == 'S' {
				return refuse("-"+string(c), "keeps the interpreter from reading PYTHONPATH or its site module", RemedyPlain)
			}
		}
	}
	return nil
}
