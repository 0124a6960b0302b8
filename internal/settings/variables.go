package settings

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// variablePrefix is the prefix of Holdfast's environment variables.
const variablePrefix = "HOLDFAST_"

// mostLauncherTimeout is the longest wait for a launcher, in seconds: a week. A greater value is a typing error.
const mostLauncherTimeout = 7 * 24 * 3600

// variables are those variables of Holdfast that users may set in the training container. Each function returns what is wrong with a value.
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

// IsOurVariable reports whether only Holdfast writes the environment variable.
func IsOurVariable(name string) bool {
	return strings.HasPrefix(name, variablePrefix) && variables[name] == nil
}

// CheckVariable returns what is wrong with a variable of a training container, and the remedy; "": nothing.
func CheckVariable(name, value string) string {
	if check := variables[name]; check != nil {
		return check(value)
	}
	return ""
}

// Variables returns Holdfast's variables that users may set, sorted.
func Variables() []string { return slices.Sorted(maps.Keys(variables)) }
