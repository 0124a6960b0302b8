package launch

import (
	"path"
	"regexp"
	"strings"
	"time"
)

// NeverWhole is the timeout of a command that names a supported launcher: it never counts as a whole command.
const NeverWhole time.Duration = -1

// How long a command may run without a launcher before it counts as a whole command.
const (
	commandTimeout = time.Minute
	// adapterTimeout is for programs that may start their ranks through torch, which they do after they have imported torch.
	adapterTimeout = 5 * time.Minute
)

// own are launchers that start their processes themselves.
var own = map[string]bool{
	"mpirun": true, "mpiexec": true, "orterun": true, "srun": true, "horovodrun": true, "composer": true, "ft_launcher": true,
	"dlrover-run": true, "colossalai": true, "jsrun": true, "prun": true,
}

// adapters start their ranks through torch, or without it if one process is enough.
var adapters = map[string]bool{"accelerate": true, "tune": true, "deepspeed": true}

// served finds the names of supported launchers in a shell's text. A false match costs only a note: the command runs as without Holdfast. A
// miss would make the agent refuse the launcher.
var served = regexp.MustCompile(`(^|[^\w.-])(torchrun|accelerate\s+launch|tune\s+run|deepspeed)($|[^\w-])|torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed\.launcher`)

// CommandTimeout returns how long a container's command may run without a launcher before the whole command counts as the one rank of its
// pod: NeverWhole if it names a supported launcher, 0 if it is another launcher. texts are the shell scripts that it runs.
func CommandTimeout(argv []string, texts ...string) time.Duration {
	if len(argv) == 0 || IsLauncher(argv) {
		return NeverWhole
	}
	switch name := path.Base(argv[0]); {
	case own[name]:
		return 0
	case adapters[name]:
		return adapterTimeout
	}
	if module, ok := pythonModule(argv); ok && served.MatchString(module) {
		return adapterTimeout
	}
	if IsPythonScript(argv) { // its arguments are the script's: --strategy deepspeed is no launcher
		return commandTimeout
	}
	for _, text := range append(texts, strings.Join(argv, " ")) {
		if served.MatchString(withoutComments(text)) {
			return NeverWhole
		}
	}
	return commandTimeout
}

// withoutComments drops the comment lines of a shell script.
func withoutComments(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// IsPythonScript reports whether argv is a Python interpreter that runs a script or module of the user.
func IsPythonScript(argv []string) bool {
	return len(argv) > 1 && pythonName.MatchString(path.Base(argv[0])) && !IsLauncher(argv)
}

// pythonModule returns the module of python -m.
func pythonModule(argv []string) (string, bool) {
	if len(argv) == 0 || !pythonName.MatchString(path.Base(argv[0])) {
		return "", false
	}
	for i := 1; i < len(argv) && strings.HasPrefix(argv[i], "-"); i++ {
		_, module, takes := pythonFlag(argv[i])
		switch {
		case module != nil && *module == "" && i+1 < len(argv):
			return argv[i+1], true
		case module != nil:
			return *module, *module != "-c"
		case takes:
			i++
		}
	}
	return "", false
}

var shellName = regexp.MustCompile(`^(ba|da|z|k|a)?sh$`)

// IsShell reports whether a program is a shell.
func IsShell(word string) bool { return shellName.MatchString(path.Base(word)) }

// ShellScripts returns those of a program's arguments that may be shell scripts, whose text may name a launcher: a shell's script, and
// files with the suffix of one.
func ShellScripts(argv []string) (files []string) {
	for i, arg := range argv {
		ofShell := i > 0 && IsShell(argv[i-1]) && !strings.HasPrefix(arg, "-")
		if !IsShell(arg) && i > 0 && (ofShell || strings.HasSuffix(arg, "sh")) {
			files = append(files, arg)
		}
	}
	return files
}

// NamesLauncher reports whether argv is a launcher, supported or not, or a shell whose text names a supported one.
func NamesLauncher(argv []string) bool {
	return len(argv) > 0 && CommandTimeout(argv) != commandTimeout
}
