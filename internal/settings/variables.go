package settings

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// variablePrefix is what our environment variables begin with.
const variablePrefix = "HOLDFAST_"

// mostLauncherTimeout, in seconds, is the longest that a command may be waited for: a week. More is a slip of the pen.
const mostLauncherTimeout = 7 * 24 * 3600

// variables are those of ours that people may set in the training container, each with what is wrong with a value.
var variables = map[string]func(value string) (problem string){
	"HOLDFAST_PYTHON": func(value string) string {
		if value == "" || strings.ContainsAny(value, "\n\x00") || strings.HasSuffix(value, string(filepath.Separator)) {
			return `must name the Python interpreter of the ranks, such as "/opt/venv/bin/python3"; leave it out for the one that runs the launcher`
		}
		return ""
	},
	"HOLDFAST_OVERLAP":  onOff("copies beside training"),
	"HOLDFAST_REGISTER": onOff("registered memory"),
	"HOLDFAST_LAUNCHER_TIMEOUT_SECONDS": func(value string) string {
		if n, err := strconv.ParseUint(value, 10, 31); err != nil || n > mostLauncherTimeout {
			return fmt.Sprintf(`must be a whole number of seconds, 0 to %d (a week), such as "600"; leave it out for the time that the command's kind has`, mostLauncherTimeout)
		}
		return ""
	},
}

func onOff(what string) func(string) string {
	return func(value string) string {
		if value != "0" && value != "1" {
			return `must be "1" (` + what + `) or "0"`
		}
		return ""
	}
}

// IsOurVariable reports whether Holdfast alone writes the environment variable.
func IsOurVariable(name string) bool {
	return strings.HasPrefix(name, variablePrefix) && variables[name] == nil
}

// CheckVariable says what is wrong with a variable of a training container and what to do; "": nothing.
func CheckVariable(name, value string) string {
	if check := variables[name]; check != nil {
		return check(value)
	}
	return ""
}

// Variables lists the variables of ours that people may set, sorted.
func Variables() []string { return slices.Sorted(maps.Keys(variables)) }
