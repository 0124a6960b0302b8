package launch

import "strings"

// Later represents unknown text in an argument or a variable: admission parses a command line before Kubernetes has expanded all variables.
// It is not valid in an argument of a process, so the agent never receives it. A flag with it in its value is neither checked nor counted.
const Later = "\x00"

// RanksLater is the value of Spec.RanksFrom if the number of ranks is not known yet.
const RanksLater = "later"

func known(s string) bool { return !strings.Contains(s, Later) }

// maybeFlag reports whether arg may expand to a flag of the launcher.
func maybeFlag(arg string) bool {
	if known(arg) || arg[0] != '-' && !strings.HasPrefix(arg, Later) {
		return false
	}
	name, _, _ := strings.Cut(arg, "=")
	return !strings.HasPrefix(arg, "--") || !known(name)
}

// setLater handles an option whose value is not known yet.
func (s *Spec) setLater(name string) {
	switch name {
	case "nproc-per-node":
		s.Ranks, s.RanksFrom = RanksAuto, RanksLater
	case "nnodes", "standalone":
		s.Nodes, s.MinNodes, s.NodesFlag = 0, 0, ""
	}
}
