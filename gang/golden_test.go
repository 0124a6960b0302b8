package gang

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/golden"
	"holdfast.dev/holdfast/topology"
)

// TestGolden plays the scripts in testdata: commands, then "----", then the answer.
//
//	levels NAME ...
//	rack PATH NODES [RESOURCE=N ...]    so many equal nodes, named after the last value of PATH
//	node NAME [domain=a/b] [used=1] [tenants=N] [closed=1] [spares=N:LEVEL] [RESOURCE=N ...]
//	role [RESOURCE=N ...] [cordoned=NODE] [tainted=NODE[:KEY]] [unhealthy=NODE:CAUSE] [refused=NODE:RULE] [shown.RESOURCE=TEXT]
//	gang SIZE [min=N] [free=GPUS] [required=LEVEL] [preferred=LEVEL] [slices=LEVEL] [size=N] [block=N] [uneven=1] [spares=N] [whole=1]
//	member SLOT ROLE [NODE]
//	essential SLOT ROLE                 a member that is not left out
//	members FROM TO ROLE [NODE ...]     one per slot
func TestGolden(t *testing.T) {
	golden.Each(t, "testdata/*.txt", func(t *testing.T, file, script string) { golden.File(t, file, play(t, script)) })
}

// play returns the script with its answers replaced by the present ones. An empty line separates blocks. The first line of a block is its
// title, which begins with '#'.
func play(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimSpace(script), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		commands, _, _ := strings.Cut(block, "----\n")
		out.WriteString(commands)
		if !strings.HasSuffix(commands, "\n") {
			out.WriteString("\n")
		}
		out.WriteString("----\n")
		out.WriteString(answer(t, commands))
	}
	return out.String()
}

func answer(t *testing.T, commands string) string {
	t.Helper()
	var nodes []topology.Node
	levels := []topology.Level{{Name: "zone", Key: "zone"}, {Name: "rack", Key: "rack"}}
	var g Gang
	for sc := bufio.NewScanner(strings.NewReader(commands)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		switch f[0] {
		case "node":
			nodes = append(nodes, parseNode(t, f[1], f[2:]))
		case "role":
			g.Roles = append(g.Roles, parseRole(t, f[1:]))
		case "levels":
			levels = nil
			for _, name := range f[1:] {
				levels = append(levels, topology.Level{Name: name, Key: "key/" + name})
			}
		case "rack":
			for i := range number(t, f[2]) {
				path := strings.Split(f[1], "/")
				name := fmt.Sprintf("%s-%02d", path[len(path)-1], i)
				nodes = append(nodes, parseNode(t, name, append(f[3:], "domain="+f[1])))
			}
		case "gang":
			g.Size = number(t, f[1])
			parseAsks(t, &g, f[2:])
		case "members":
			for slot := number(t, f[1]); slot <= number(t, f[2]); slot++ {
				m := Member{Slot: slot, Name: fmt.Sprintf("pod-%02d", slot), Role: number(t, f[3])}
				if k := 4 + slot - number(t, f[1]); k < len(f) {
					m.Node = f[k]
				}
				g.Members = append(g.Members, m)
			}
		case "member", "essential":
			m := Member{Slot: number(t, f[1]), Name: "pod-" + f[1], Role: number(t, f[2]), Essential: f[0] == "essential"}
			if len(f) > 3 {
				m.Node = f[3]
			}
			g.Members = append(g.Members, m)
		case "apart":
			g.Agree = oneEach
		default:
			t.Fatalf("unknown command %q", f[0])
		}
	}
	tree := topology.New(levels, nodes...)
	p, r := Place(tree, g)
	if err := promised(tree, fabric{levels, nodes, g}, p, r); err != nil {
		t.Errorf("%s: %v", strings.SplitN(commands, "\n", 2)[0], err) // also if the golden file has the same answer
	}
	if r != nil {
		var causes []string
		for _, c := range sortedCauses(r.Excluded) {
			causes = append(causes, fmt.Sprintf("%s=%d", strings.ReplaceAll(c.String(), " ", "_"), len(r.Excluded[c])))
		}
		return fmt.Sprintf("%s wanted=%d fits=%d nodes=%d %s\n%s\n", r.Reason, r.Wanted, r.Fits, r.Nodes, strings.Join(causes, " "), r.Message)
	}
	if len(p.Assignments) < len(g.Members) {
		var assignments []string
		for _, s := range p.Assignments {
			assignments = append(assignments, fmt.Sprintf("%d:%s", s.Slot, s.Node))
		}
		return fmt.Sprintf("placed=%d of %d on %s\n", p.Placed, len(g.Members), strings.Join(assignments, " "))
	}
	return fmt.Sprintf("placed=%d on %s\n", p.Placed, strings.Join(p.Nodes(), " "))
}

func parseAsks(t *testing.T, g *Gang, fields []string) {
	for _, f := range fields {
		switch k, v, _ := strings.Cut(f, "="); k {
		case "free":
			g.Free = topology.Resources{"gpu": int64(number(t, v))}
		case "min":
			g.Min = number(t, v)
		case "required":
			g.Topology.Required = v
		case "preferred":
			g.Topology.Preferred = v
		case "slices":
			g.Topology.SliceLevel = v
		case "size":
			g.Topology.SliceSize = number(t, v)
		case "block":
			g.Topology.Block = number(t, v)
		case "spares":
			g.Topology.Spares = number(t, v)
		case "uneven":
			g.Topology.Uneven = true
		case "whole":
			g.Topology.Whole = true
		default:
			t.Fatalf("unknown wish %q", f)
		}
	}
}

func parseNode(t *testing.T, name string, fields []string) topology.Node {
	n := topology.Node{Name: name, Free: topology.Resources{}}
	for _, f := range fields {
		k, v, _ := strings.Cut(f, "=")
		switch k {
		case "domain":
			n.Domain = strings.Split(v, "/")
		case "used":
			n.Used = true
		case "tenants":
			n.Tenants = number(t, v)
		case "closed":
			n.Exclusive = true
		case "spares":
			count, level, _ := strings.Cut(v, ":")
			n.Spares, n.SparesAt = number(t, count), level
		default:
			n.Free[k] = int64(number(t, v))
		}
	}
	return n
}

func parseRole(t *testing.T, fields []string) Role {
	r := Role{Requests: topology.Resources{}, Out: map[string]Cause{}, Shown: map[string]string{}}
	for _, f := range fields {
		k, v, _ := strings.Cut(f, "=")
		switch node, rule, _ := strings.Cut(v, ":"); {
		case k == "cordoned":
			r.Out[v] = Cause{Kind: Cordoned}
		case k == "tainted":
			r.Out[node] = Cause{Kind: Tainted, Name: rule}
		case k == "unhealthy":
			r.Out[node] = Cause{Kind: Unhealthy, Name: rule}
		case k == "refused" && node == "*":
			r.OutAll = &Cause{Kind: Refused, Name: rule}
		case k == "refused":
			r.Out[node] = Cause{Kind: Refused, Name: rule}
		case strings.HasPrefix(k, "shown."):
			r.Shown[strings.TrimPrefix(k, "shown.")] = v
		default:
			r.Requests[k] = int64(number(t, v))
		}
	}
	return r
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
