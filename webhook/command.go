package webhook

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/ckptagent/launch"
)

// commandLine is what a container starts, as far as it is known at admission: what is not holds launch.Later.
type commandLine struct {
	argv []string
	env  map[string]string
	// errs: expansion would produce more than any process can be started with, or nobody waits for it. Then argv is empty.
	errs field.ErrorList
}

// readCommand resolves the references in the container's command, the way the kubelet does: a variable sees
// those before it in its list, the command sees them all, and those of envFrom. It reads no further once ctx has ended.
func readCommand(ctx context.Context, c *corev1.Container, at *field.Path) commandLine {
	line := commandLine{env: map[string]string{}}
	x := &expander{vars: line.env, later: setLater}
	resolve := func(s string, at *field.Path) string {
		if err := ctx.Err(); err != nil {
			line.errs = append(line.errs, field.InternalError(at, fmt.Errorf("was not read, for nobody waits for the answer any more: %w", err)))
			return ""
		}
		out, err := x.expand(s)
		if err != nil {
			line.errs = append(line.errs, field.Invalid(at, beginning(s), err.Error()))
		}
		return out
	}
	for i, e := range c.Env {
		value := launch.Later
		if e.ValueFrom == nil {
			value = resolve(e.Value, at.Child("env").Index(i).Child("value"))
		}
		if line.env[e.Name] = value; len(line.errs) > 0 {
			return line
		}
	}
	if len(c.EnvFrom) > 0 {
		x.later = func(string) bool { return true }
	}
	own := userCommand(c.Command)
	before := len(c.Command) - len(own)
	for _, list := range []struct {
		items []string
		at    *field.Path
		from  int
	}{{own, at.Child("command"), before}, {c.Args, at.Child("args"), 0}} {
		for i, a := range list.items {
			line.argv = append(line.argv, resolve(a, list.at.Index(list.from+i)))
			if len(line.errs) > 0 {
				line.argv = nil
				return line
			}
		}
	}
	return line
}

// beginning is as much of s as a message can hold.
func beginning(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

// userCommand is the command without what injection put before it.
func userCommand(command []string) []string {
	if len(command) > len(wrapper) && command[0] == agentPath {
		return command[len(wrapper):]
	}
	return command
}

// startsPython says whether the command is a Python interpreter, or a shell that is given a text which names one.
func startsPython(argv []string) bool {
	switch name := path.Base(argv[0]); {
	case strings.HasPrefix(name, "python"):
		return true
	case name == "sh" || name == "bash" || name == "dash":
		return slices.ContainsFunc(argv[1:], func(a string) bool { return strings.HasPrefix(a, "-") && strings.HasSuffix(a, "c") }) && strings.Contains(strings.Join(argv, " "), "python")
	}
	return false
}

// refusedFlag is what a launcher's refusal says: the flag, and why with the remedy.
func refusedFlag(err error) (flag, text string) {
	text = err.Error()
	var refusal *launch.Refusal
	if errors.As(err, &refusal) {
		flag, text = refusal.Flag, refusal.Why
		if refusal.Remedy != "" {
			text += "; " + refusal.Remedy
		}
	}
	return flag, text
}
