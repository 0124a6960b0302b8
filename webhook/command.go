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

// commandLine is what a container starts, as far as admission knows it: an unknown value is launch.Later.
type commandLine struct {
	argv []string
	env  map[string]string
	// errs: expansion exceeds the size with which a process can start, or admission was cancelled. Then argv is empty.
	errs field.ErrorList
}

// readCommand resolves the references in the container's command, the way the kubelet does: a variable sees those before it in its list,
// the command sees them all, and those of envFrom. readCommand reads no further once ctx has ended.
func readCommand(ctx context.Context, c *corev1.Container, at *field.Path) commandLine {
	line := commandLine{env: map[string]string{}}
	x := &expander{vars: line.env, later: setLater}
	resolve := func(s string, at *field.Path) string {
		if err := ctx.Err(); err != nil {
			line.errs = append(line.errs, field.InternalError(at, fmt.Errorf("was not read, because admission was cancelled: %w", err)))
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
	command, args := userParts(c)
	for _, list := range []struct {
		all, own []string
		at       *field.Path
	}{{c.Command, command, at.Child("command")}, {c.Args, args, at.Child("args")}} {
		for i, a := range list.own {
			line.argv = append(line.argv, resolve(a, list.at.Index(len(list.all)-len(list.own)+i)))
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

// userParts are the container's command and args without what injection put before them, and without what another webhook
// put before that, such as one that starts every command through a program which fetches secrets.
func userParts(c *corev1.Container) (command, args []string) {
	if i := wrapperIn(c.Command); i >= 0 {
		return c.Command[i+len(wrapper):], c.Args
	}
	if i := wrapperIn(c.Args); i >= 0 {
		return nil, c.Args[i+len(wrapper):]
	}
	return c.Command, c.Args
}

// wrapperIn is the index of the wrapper among words, with a command after it; -1: there is none.
func wrapperIn(words []string) int {
	for i := range max(len(words)-len(wrapper), 0) {
		if slices.Equal(words[i:i+len(wrapper)], wrapper) {
			return i
		}
	}
	return -1
}

// wrapped reports whether the container starts the agent by a word of its command.
func wrapped(c *corev1.Container) bool {
	return slices.Contains(c.Command, agentPath) || slices.Contains(c.Args, agentPath)
}

// mentionsAgent reports the same for texts that hold the agent's path, such as the text of a shell that another webhook put around
// a wrapped command.
func mentionsAgent(c *corev1.Container) bool {
	mentions := func(word string) bool { return strings.Contains(word, agentPath) }
	return slices.ContainsFunc(c.Command, mentions) || slices.ContainsFunc(c.Args, mentions)
}

// launcherIn is argv from the launcher on: the words before it start it, such as env, numactl or a program that fetches secrets.
func launcherIn(argv []string) []string {
	for i := range min(len(argv), mostBefore) {
		if launch.IsLauncher(argv[i:]) {
			return argv[i:]
		}
	}
	return nil
}

// mostBefore is how many words are looked at for a launcher.
const mostBefore = 16

// startsPython reports whether the command is a Python interpreter, or a shell that is given a text which names one.
func startsPython(argv []string) bool {
	switch name := path.Base(argv[0]); {
	case strings.HasPrefix(name, "python"):
		return true
	case name == "sh" || name == "bash" || name == "dash":
		return slices.ContainsFunc(argv[1:], func(a string) bool { return strings.HasPrefix(a, "-") && strings.HasSuffix(a, "c") }) &&
			strings.Contains(strings.Join(argv, " "), "python")
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
