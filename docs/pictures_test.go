package docs

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast.dev/holdfast/gang"
	"holdfast.dev/holdfast/topology"
)

// scene is a cluster and a gang; its picture shows the planner's answer.
type scene struct {
	title string
	// domains are the domains of the narrowest level, in order.
	domains []fabricDomain
	levels  []topology.Level
	// size is the number of pods. Pods marked m are on nodes, by slot; slot lost has no pod.
	size, lost int
	asks       gang.Topology
}

// fabricDomain is an NVLink domain or a rack, with one letter per node. "." is free, "#" is used by others, "o" has a small pod of others,
// "!" is sick, "m" has a member.
type fabricDomain struct {
	path  []string
	nodes string
}

var (
	blockRack  = []topology.Level{{Name: "block", Key: "example.com/block"}, {Name: "rack", Key: "example.com/rack"}}
	onlyNVLink = []topology.Level{{Name: "nvlink", Key: "nvidia.com/gpu.clique"}}
	blocks     = []fabricDomain{{[]string{"b1", "r1"}, "##.."}, {[]string{"b1", "r2"}, "...."}, {[]string{"b2", "r3"}, "...."}, {[]string{"b2", "r4"}, "###."}}
)

func cliques(nodes ...string) []fabricDomain {
	var all []fabricDomain
	for i, n := range nodes {
		all = append(all, fabricDomain{[]string{fmt.Sprintf("c%d", i+1)}, n})
	}
	return all
}

const empty18 = ".................."

var scenes = map[string]scene{
	"small":    {title: "Two pods: into a rack that is broken already", levels: blockRack, domains: blocks, size: 2, lost: -1},
	"large":    {title: "Four pods: one whole rack", levels: blockRack, domains: blocks, size: 4, lost: -1},
	"larger":   {title: "Six pods: one block, no wider than need be", levels: blockRack, domains: blocks, size: 6, lost: -1},
	"slices":   {title: "24 pods, slice-level nvlink, two spares: 12 and 12, never 14 and 10", levels: onlyNVLink, domains: cliques(empty18, empty18, "######"+empty18[6:]), size: 24, lost: -1, asks: gang.Topology{SliceLevel: "nvlink", Spares: 2}},
	"spares":   {title: "32 pods, two spares: a sick node counts as a spare that is spent", levels: onlyNVLink, domains: cliques("...!..............", empty18), size: 32, lost: -1, asks: gang.Topology{SliceLevel: "nvlink", Spares: 2}},
	"replaced": {title: "Slot 3 lost its node: its new pod takes a spare of the same domain", levels: onlyNVLink, domains: cliques("mmm!mmmm..", ".........."), size: 8, lost: 3, asks: gang.Topology{Required: "nvlink", Spares: 2}},
	"whole":    {title: "Four pods, whole-nodes: no node with pods of others", levels: blockRack, domains: []fabricDomain{{[]string{"b1", "r1"}, "o..."}, {[]string{"b1", "r2"}, ".o.."}, {[]string{"b2", "r3"}, "#o.."}, {[]string{"b2", "r4"}, "...."}}, size: 4, lost: -1, asks: gang.Topology{Whole: true}},
	"refused":  {title: "20 pods, topology-required nvlink: there is room, but in no one domain", levels: onlyNVLink, domains: cliques(empty18, "##"+empty18[2:], "!!!"+empty18[3:]), size: 20, lost: -1, asks: gang.Topology{Required: "nvlink"}},
}

const device = "nvidia.com/gpu"

// ask calls the planner for a scene. slots are the members' slots by node.
func (s scene) ask() (slots map[string]int, before map[string]bool, no *gang.Refusal) {
	role := gang.Role{Requests: topology.Resources{device: 8}, Out: map[string]gang.Cause{}}
	var nodes []topology.Node
	g := gang.Gang{Size: s.size, Topology: s.asks}
	before = map[string]bool{}
	for _, d := range s.domains {
		for i, what := range d.nodes {
			n := topology.Node{Name: nodeName(d, i), Domain: d.path, Free: topology.Resources{device: 8}}
			switch what {
			case '#':
				n.Free[device], n.Used, n.Tenants = 0, true, 1
			case 'o':
				n.Tenants = 1
			case '!':
				role.Out[n.Name] = gang.Cause{Kind: gang.Unhealthy, Name: "XidOffBus"}
			case 'm':
				n.Free[device], n.Used, n.Tenants = 0, true, 1
				n.Spares, n.SparesAt = s.asks.Spares, s.levels[len(s.levels)-1].Name
				slot := len(g.Members)
				if slot >= s.lost {
					slot++
				}
				g.Members = append(g.Members, gang.Member{Slot: slot, Name: fmt.Sprint(slot), Node: n.Name})
				before[n.Name] = true
			}
			nodes = append(nodes, n)
		}
	}
	for slot := range s.size {
		if !slices.ContainsFunc(g.Members, func(m gang.Member) bool { return m.Slot == slot }) {
			g.Members = append(g.Members, gang.Member{Slot: slot, Name: fmt.Sprint(slot)})
		}
	}
	slices.SortFunc(g.Members, func(a, b gang.Member) int { return a.Slot - b.Slot })
	g.Roles = []gang.Role{role}
	placement, no := gang.Place(topology.New(s.levels, nodes...), g)
	slots = map[string]int{}
	for _, assignment := range placement.Assignments {
		slots[assignment.Node] = assignment.Slot
	}
	for _, m := range g.Members {
		if m.Node != "" {
			slots[m.Node] = m.Slot
		}
	}
	return slots, before, no
}

func nodeName(d fabricDomain, i int) string {
	return fmt.Sprintf("%s-%02d", strings.Join(d.path, "-"), i)
}

const (
	cell, gap, pad = 26, 5, 12
	perRow         = 9
	wide           = 600
)

// draw writes an answer as a picture.
func (s scene) draw() string {
	slots, before, no := s.ask()
	var b strings.Builder
	x, y, height, outer := 0, 40, 0, ""
	for i, d := range s.domains {
		w, h := d.extent()
		top := ""
		if len(d.path) > 1 {
			top = d.path[0]
		}
		if i > 0 && (x+w+2*pad > wide || (top != outer && top != "")) {
			x, y, height = 0, y+height+pad, 0
		}
		if top != "" && top != outer {
			fmt.Fprintf(&b, `<rect x="4" y="%d" width="%d" height="%d" rx="8" fill="none" stroke="#b6bcc6"/>`+"\n", y-4, 2*(w+pad)+pad+54, h+8)
			fmt.Fprintf(&b, `<text x="14" y="%d" class="t">%s %s</text>`+"\n", y+h/2+4, s.levels[0].Name, top)
		}
		if top != "" && x == 0 {
			x = 66
		}
		outer = top
		s.domain(&b, d, x+pad/2, y, slots, before)
		x, height = x+w+pad, max(height, h)
	}
	y += height + 24
	for _, line := range wrapped(no) {
		fmt.Fprintf(&b, `<text x="8" y="%d" class="m">%s</text>`+"\n", y, html.EscapeString(line))
		y += 17
	}
	s.legend(&b, y+4)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="%s">
<style>text{font:13px sans-serif;fill:#22262c}.h{font-weight:bold}.t{fill:#555c66}.n{font:11px sans-serif;text-anchor:middle}.w{fill:#fff}.m{font:12px monospace}</style>
<rect width="100%%" height="100%%" rx="8" fill="#f7f8fa"/>
<text x="8" y="20" class="h">%s</text>
%s</svg>
`, wide, y+30, html.EscapeString(s.title), html.EscapeString(s.title), b.String())
}

// extent is the size of a domain's drawing.
func (d fabricDomain) extent() (w, h int) {
	n := min(len(d.nodes), perRow)
	rows := (len(d.nodes) + perRow - 1) / perRow
	return n*(cell+gap) + gap + 2, rows*(cell+gap) + gap + 20
}

func (s scene) domain(b *strings.Builder, d fabricDomain, x, y int, slots map[string]int, before map[string]bool) {
	w, h := d.extent()
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="5" fill="#fff" stroke="#9aa1ac"/>`+"\n", x, y, w, h)
	fmt.Fprintf(b, `<text x="%d" y="%d" class="t">%s %s</text>`+"\n", x+6, y+15, s.levels[len(s.levels)-1].Name, d.path[len(d.path)-1])
	kept := d.kept(s.asks.Spares, slots)
	for i, what := range d.nodes {
		nx, ny := x+gap+1+i%perRow*(cell+gap), y+20+i/perRow*(cell+gap)
		slot, taken := slots[nodeName(d, i)]
		style, text, class := `fill="#fff" stroke="#9aa1ac"`, "", "n"
		switch {
		case taken && s.lost >= 0 && !before[nodeName(d, i)]:
			style, text, class = `fill="#12805c" stroke="#0c5c42"`, fmt.Sprint(slot), "n w"
		case taken:
			style, text, class = `fill="#2f6fdb" stroke="#1f4f9e"`, fmt.Sprint(slot), "n w"
		case what == '#':
			style = `fill="#c9cdd3" stroke="#9aa1ac"`
		case what == 'o':
			style, text = `fill="#fff" stroke="#9aa1ac"`, "●"
		case what == '!':
			style, text = `fill="#f8cfcb" stroke="#b3261e"`, "✕"
		case i >= kept:
			style, text = `fill="#fff8e1" stroke="#a37b00" stroke-dasharray="4 2"`, "s"
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%[3]d" rx="3" %s/>`, nx, ny, cell, style)
		if text != "" {
			fmt.Fprintf(b, `<text x="%d" y="%d" class="%s">%s</text>`, nx+cell/2, ny+17, class, text)
		}
		b.WriteByte('\n')
	}
}

// kept returns the index of the first free node that is a promised spare. In a used domain these are the last free nodes, minus one for
// each sick node.
func (d fabricDomain) kept(spares int, slots map[string]int) (from int) {
	used := false
	for i, what := range d.nodes {
		_, here := slots[nodeName(d, i)]
		used = used || here
		if what == '!' {
			spares--
		}
	}
	from = len(d.nodes)
	for i := len(d.nodes) - 1; used && i >= 0 && spares > 0; i-- {
		if _, here := slots[nodeName(d, i)]; !here && d.nodes[i] == '.' {
			from, spares = i, spares-1
		}
	}
	return from
}

// legend explains the symbols that the scene uses.
func (s scene) legend(b *strings.Builder, y int) {
	all := ""
	for _, d := range s.domains {
		all += d.nodes
	}
	x := 8
	for _, l := range []struct {
		there             bool
		style, text, says string
	}{
		{true, `fill="#2f6fdb" stroke="#1f4f9e"`, "", "pod, with its index"},
		{s.lost >= 0, `fill="#12805c" stroke="#0c5c42"`, "", "new pod"},
		{true, `fill="#fff" stroke="#9aa1ac"`, "", "free node"},
		{strings.Contains(all, "#"), `fill="#c9cdd3" stroke="#9aa1ac"`, "", "taken by others"},
		{strings.Contains(all, "o"), `fill="#fff" stroke="#9aa1ac"`, "●", "small pod of others"},
		{strings.Contains(all, "!"), `fill="#f8cfcb" stroke="#b3261e"`, "✕", "sick"},
		{s.asks.Spares > 0, `fill="#fff8e1" stroke="#a37b00" stroke-dasharray="4 2"`, "s", "left free for pods that are replaced"},
	} {
		if !l.there {
			continue
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="14" height="14" rx="2" %s/><text x="%d" y="%d" class="n">%s</text><text x="%d" y="%d" class="t">%s</text>`+"\n", x, y, l.style, x+7, y+11, l.text, x+20, y+12, l.says)
		x += 36 + 7*len(l.says)
	}
}

// wrapped is a refusal's text, in lines.
func wrapped(no *gang.Refusal) []string {
	if no == nil {
		return nil
	}
	return filled(no.Message, 79)
}

var picture = regexp.MustCompile(`pictures/([a-z]+)\.svg`)

// TestPictures: the pictures of docs/placement.md are the planner's present answers, and the page shows all of them.
func TestPictures(t *testing.T) {
	shown := map[string]bool{}
	for _, m := range picture.FindAllStringSubmatch(page(t, "placement.md"), -1) {
		shown[m[1]] = true
		if _, ok := scenes[m[1]]; !ok {
			t.Errorf("placement.md shows %s, which is no picture", m[0])
		}
	}
	for name, s := range scenes {
		file, got := filepath.Join("pictures", name+".svg"), s.draw()
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if !shown[name] {
			t.Errorf("placement.md does not show %s", file)
		}
		if page(t, file) != got {
			t.Errorf("%s differs from the planner's answer: go test ./docs -update, and check that the page still describes it", file)
		}
	}
	files, err := filepath.Glob("pictures/*.svg")
	if err != nil || len(files) != len(scenes) {
		t.Errorf("%d files for %d pictures, %v", len(files), len(scenes), err)
	}
}
