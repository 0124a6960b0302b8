//go:build linux

package watch

import (
	"slices"
	"strconv"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

// mostGroups and mostGroupBytes bound what is read of a file of groups.
const (
	mostGroups     = 1024
	mostGroupBytes = 1 << 20
)

// group is a process group that a rank's process is in, as the site hook has noted it.
type group struct {
	name, backends string
	ranks          []protocol.RankRange
}

func (g group) uses(backend string) bool {
	if backend == "nccl2" {
		backend = "nccl"
	}
	for pair := range strings.SplitSeq(g.backends, ",") {
		if _, name, ok := strings.Cut(pair, ":"); (ok && name == backend) || pair == backend {
			return true
		}
	}
	return false
}

// parseGroups reads a file of groups; a line that is no group is left out.
func parseGroups(raw []byte) []group {
	var out []group
	for line := range strings.Lines(string(raw)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 || !strings.HasSuffix(line, "\n") || len(out) == mostGroups {
			continue
		}
		if ranks := ranges(f[2]); ranks != nil {
			out = append(out, group{name: f[0], backends: f[1], ranks: ranks})
		}
	}
	return out
}

// members returns the members of the newest group of that name.
func members(groups []group, name, backend string) []protocol.RankRange {
	for _, g := range slices.Backward(groups) {
		if g.name == name && g.uses(backend) {
			return g.ranks
		}
	}
	return nil
}

// backendsOf returns the backends of groups. Without a group it is unknown which there are, and gloo's is asked.
func backendsOf(groups []group) []string {
	found := []string{}
	for _, g := range groups {
		for pair := range strings.SplitSeq(g.backends, ",") {
			_, name, ok := strings.Cut(pair, ":")
			if !ok {
				name = pair
			}
			if name != "" && name != "undefined" && !slices.Contains(found, name) && len(found) < mostBackends {
				found = append(found, name)
			}
		}
	}
	if len(found) == 0 {
		return []string{"gloo"}
	}
	return found
}

// ranges reads ranks as the site hook writes them, FIRST, FIRST-LAST or FIRST-LAST/STEP with commas between; nil: they are not that.
func ranges(text string) []protocol.RankRange {
	var out []protocol.RankRange
	var single []int
	for span := range strings.SplitSeq(text, ",") {
		first, rest, many := strings.Cut(span, "-")
		n, err := strconv.ParseUint(first, 10, 31)
		if err != nil {
			return nil
		}
		if !many {
			single = append(single, int(n))
			continue
		}
		end, by, stepped := strings.Cut(rest, "/")
		last, err := strconv.ParseUint(end, 10, 31)
		step := uint64(1)
		if err == nil && stepped {
			step, err = strconv.ParseUint(by, 10, 31)
		}
		if err != nil || step == 0 || last < n {
			return nil
		}
		out, single = append(out, protocol.Ranges(single)...), nil
		out = append(out, protocol.RankRange{First: int(n), Count: int((last-n)/step) + 1, Step: int(step)})
	}
	return append(out, protocol.Ranges(single)...)
}

// within reports whether all members are ranks of a world of that size.
func within(ranks []protocol.RankRange, world int) bool {
	for _, r := range ranks {
		for _, n := range []int{r.First, r.First + (r.Count-1)*r.Step} {
			if n < 0 || n >= world {
				return false
			}
		}
	}
	return len(ranks) > 0
}
