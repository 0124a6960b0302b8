package launch

import "strings"

// Later stands in an argument or a variable for unknown text: admission reads a command line before Kubernetes has put all values
// into it. No process can have such an argument, so the agent never meets it. A flag whose value holds it is neither checked nor
// counted.
const Later = "\x00"

// RanksLater is the value of Spec.RanksFrom where the number of ranks is not known yet.
const RanksLater = "later"

func known(s string) bool { return !strings.Contains(s, Later) }

// maybeFlag reports whether arg could turn out to be any flag of the launcher.
func maybeFlag(arg string) bool {
	if known(arg) || arg[0] != '-' && !strings.HasPrefix(arg, Later) {
		return false
	}
	name, _, _ := strings.Cut(arg, "=")
	return !strings.HasPrefix(arg, "--") || !known(name)
}

// setLater takes the one option val whose value is not known yet.
func (s *Spec) setLater(name string) {
	switch name {
	case "nproc-per-node":
		s.Ranks, s.RanksFrom = RanksAuto, RanksLater
	case "nnodes", "standalone":
		s.Nodes, s.NodesFlag = 0, ""
	}
}
