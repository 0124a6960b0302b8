package gang

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"holdfast.dev/holdfast/topology"
)

// LevelCount counts, at one level, the domains with room for members that must share a domain.
type LevelCount struct {
	// Level is the level's name. Each of Needed domains must take Wanted members; Enough of all Domains could.
	Level           string
	Wanted, Needed  int
	Domains, Enough int
	// Best is the domain with the most room, and Most is the room there.
	Best string
	Most int
	// Held: members of the gang are in Best, and the rest must be placed there, too.
	Held bool
}

// refuse returns the refusal, for the role of the first member that was not placed.
func (s *search) refuse() *Refusal {
	if s.v != nil {
		s.deepest = s.fitting()
	}
	blocked := s.g.Members[s.order[min(s.deepest, len(s.order)-1)]].Role
	r := &Refusal{Reason: InsufficientNodes, Wanted: len(s.order), Fits: s.deepest, Nodes: s.tree.Len(), Excluded: map[Cause][]string{}}
	v := s.v
	if v == nil {
		v = newView(s.tree, s.g, blocked, s.rules)
	}
	s.exclude(r, v, blocked)
	if s.g.Agree != nil {
		s.disagreements(r, blocked)
	}
	if s.rules.required >= 0 || s.rules.slice >= 0 {
		s.countLevels(r, v)
		r.NoNodeHelps = s.noNodeHelps(r, v)
	}
	r.Message = r.text(s.g, s.g.Roles[blocked])
	if s.tries < 0 {
		r.Message += "; the search reached its limit"
	}
	return r
}

// noNodeHelps reports whether no number of added nodes changes the answer: the members cannot be divided as requested, or each NVLink
// domain is too small though it is empty and healthy. Domains of other levels may grow; the number of accelerators in an NVLink domain does
// not.
func (s *search) noNodeHelps(r *Refusal, v *view) bool {
	shares := s.rules.shares(len(s.order))
	if s.rules.slice >= 0 && !s.standing && len(shares) == 0 {
		return true
	}
	for _, c := range r.Levels {
		wanted := c.Wanted
		if c.Needed > 1 {
			wanted = slices.Min(shares)
		}
		level, _ := s.tree.FindLevel(c.Level)
		if c.Level == topology.LevelNVLink && c.Domains > 0 && c.Most < wanted && (c.Held || s.empty(v, level)) {
			return true
		}
	}
	return false
}

// empty reports whether no node in a level's domains is used or faulty, so that no more can ever fit than now.
func (s *search) empty(v *view, level int) bool {
	for _, d := range s.tree.Domains(level) {
		for i := range s.tree.Within(d) {
			if s.tree.Used(i) || s.tree.Tenants(i) > 0 {
				return false
			}
		}
	}
	for _, role := range s.g.Roles {
		for d, sick := range sickIn(s.tree, role, level) {
			if sick > 0 && s.tree.Named(d) {
				return false
			}
		}
	}
	return true
}

// exclude records the nodes that have no room for even one member of the role.
func (s *search) exclude(r *Refusal, v *view, blocked int) {
	role := s.g.Roles[blocked]
	left := map[int]Cause{}
	for _, i := range v.spared {
		left[i] = Cause{Kind: Spare}
	}
	for _, i := range v.unlabelled {
		left[i] = Cause{Kind: Unlabelled, Name: s.tree.Levels()[s.rules.sparesAt].Name}
	}
	for i := range s.tree.All() {
		if v.rooms[i] > 0 {
			continue
		}
		cause, out := excluded(s.tree, i, role)
		if !out {
			rule, kept := left[i]
			switch {
			case kept:
				cause = rule
			case s.tree.Exclusive(i):
				cause = Cause{Kind: Whole}
			default:
				cause = Cause{Kind: InUse}
			}
		}
		r.Excluded[cause] = append(r.Excluded[cause], s.tree.Name(i))
	}
}

// fitting returns the most members of one shape that could be placed.
func (s *search) fitting() int {
	n := len(s.order)
	if s.rules.slice < 0 || s.standing {
		return min(n, s.roomy())
	}
	_, best := s.closest(s.v)
	return best
}

// closest returns the size of slices with which most members could be placed, and that number.
func (s *search) closest(v *view) (size, most int) {
	n := len(s.order)
	for _, share := range s.rules.shares(n) {
		for _, d := range s.tree.Domains(s.rules.required) {
			var places []int
			for _, c := range s.sliceDomains(d) {
				if s.rules.uneven {
					places = append(places, int(v.places[c])/share*share)
				} else {
					places = append(places, min(int(v.places[c]), share))
				}
			}
			slices.Sort(places)
			slices.Reverse(places)
			if !s.rules.uneven {
				places = places[:min(len(places), n/share)]
			}
			fits := 0
			for _, m := range places {
				fits += m
			}
			if size == 0 || min(fits, n) > most {
				size, most = share, min(fits, n)
			}
		}
	}
	return size, most
}

// sliceDomains returns the named domains of the slices' level in d.
func (s *search) sliceDomains(d int) []int {
	var all []int
	var walk func(d int)
	walk = func(d int) {
		if s.tree.LevelOf(d) == s.rules.slice {
			if s.tree.Named(d) {
				all = append(all, d)
			}
			return
		}
		for _, c := range s.tree.Children(d) {
			walk(int(c))
		}
	}
	walk(d)
	return all
}

// countLevels counts, for each level that the gang names and the wider ones, the domains with enough room.
func (s *search) countLevels(r *Refusal, v *view) {
	if s.standing {
		d, known := s.bounds()
		if level := s.rules.required; !known {
			r.Unblock = fmt.Sprintf("the %s of the others is unknown: their nodes have no label %s", s.tree.Levels()[level].Name, s.tree.Levels()[level].Key)
		}
		if known && d != topology.Root {
			r.Levels = []LevelCount{{Level: s.tree.Levels()[s.rules.required].Name, Wanted: len(s.order), Needed: 1, Domains: 1,
				Best: s.tree.Path(d), Most: int(v.places[d]), Held: true}}
		}
		return
	}
	for level := range s.rules.required + 1 {
		r.Levels = append(r.Levels, s.levelCount(v, level, len(s.order), 1))
	}
	if s.rules.slice > s.rules.required {
		if size, _ := s.closest(v); size > 0 {
			r.Levels = append(r.Levels, s.levelCount(v, s.rules.slice, size, len(s.order)/size))
		}
	}
	r.Unblock = s.unblock(r, v)
}

func (s *search) levelCount(v *view, level, wanted, needed int) LevelCount {
	c := LevelCount{Level: s.tree.Levels()[level].Name, Wanted: wanted, Needed: needed}
	for _, d := range s.tree.Domains(level) {
		places := int(v.places[d])
		c.Domains++
		if places >= wanted {
			c.Enough++
		}
		if c.Best == "" || places > c.Most {
			c.Best, c.Most = s.tree.Path(d), places
		}
	}
	return c
}

// unblock returns the smallest addition that would be enough.
func (s *search) unblock(r *Refusal, v *view) string {
	n := len(s.order)
	if s.rules.slice > s.rules.required && len(s.rules.shares(n)) == 0 {
		return fmt.Sprintf("%s cannot be divided into equal slices of %s", Count(n, "pod", "pods"), s.unitText())
	}
	if len(r.Levels) == 0 {
		return ""
	}
	last := r.Levels[len(r.Levels)-1]
	if last.Needed == 1 {
		if last.Best == "" {
			return fmt.Sprintf("no node is in a domain of level %s", last.Level)
		}
		text := fmt.Sprintf("%d more free in %s %s would do", last.Wanted-last.Most, last.Level, last.Best)
		if int(v.places[topology.Root]) >= n && s.rules.slice < 0 {
			text += fmt.Sprintf(", or to prefer %s rather than require it", last.Level)
		}
		return text
	}
	return s.missingForSlices(v, n)
}

func (s *search) unitText() string {
	if s.rules.size > 0 && s.rules.block > 1 {
		return fmt.Sprintf("%d and blocks of %d", s.rules.size, s.rules.block)
	}
	return fmt.Sprint(max(s.rules.size, s.rules.block))
}

// missingForSlices returns the domain in which the smallest addition would be enough.
func (s *search) missingForSlices(v *view, n int) string {
	type lack struct{ more, size, domain int }
	var all []lack
	for _, size := range s.rules.shares(n) {
		var domains []int
		for _, d := range s.tree.Domains(s.rules.slice) {
			if s.tree.Size(d) > 0 {
				domains = append(domains, d)
			}
		}
		slices.SortStableFunc(domains, func(a, b int) int { return cmp.Compare(v.places[b], v.places[a]) })
		if len(domains) < n/size {
			continue
		}
		k := n/size - 1
		more := 0
		for _, d := range domains[:k+1] {
			more += max(0, size-int(v.places[d]))
		}
		if more > 0 {
			all = append(all, lack{more, size, domains[k]})
		}
	}
	if len(all) == 0 {
		return ""
	}
	least := slices.MinFunc(all, func(a, b lack) int { return cmp.Compare(a.more, b.more) })
	return fmt.Sprintf("%d more free in %s %s would do, for slices of %d", least.more, s.tree.Levels()[s.rules.slice].Name, s.tree.Path(least.domain), least.size)
}

// disagreements adds nodes that Agree refuses for the blocked role even without other members.
func (s *search) disagreements(r *Refusal, blocked int) {
	asked := slices.IndexFunc(s.order, func(m int) bool { return s.g.Members[m].Role == blocked })
	for i := range s.tree.All() {
		if s.room(i, blocked, 1) == 0 {
			continue
		}
		if cause, ok := s.g.Agree(s.order[asked], s.tree.Name(i), nil); !ok {
			r.Excluded[cause] = append(r.Excluded[cause], s.tree.Name(i))
		}
	}
}

// excluded reports whether a node is excluded for the role regardless of other members, and why.
func excluded(tree *topology.Tree, i int, role Role) (Cause, bool) {
	if role.OutAll != nil {
		return *role.OutAll, true
	}
	lacks := tree.Lacks(i, role.Requests)
	cause, out := role.Out[tree.Name(i)]
	switch {
	case out && cause.Kind != Insufficient:
		return cause, true
	case len(lacks) > 0:
		return Cause{Kind: Insufficient, Name: scarcest(lacks)}, true
	default:
		return cause, out
	}
}

// scarcest returns the resource to name if several are lacking: a device before what every node has.
func scarcest(names []string) string {
	for _, n := range names {
		if strings.Contains(n, "/") {
			return n
		}
	}
	return names[0]
}

func (r *Refusal) text(g Gang, role Role) string {
	var b strings.Builder
	b.WriteString(Count(r.Wanted, "pod wanted", "pods wanted"))
	if g.Min > 0 && g.Min < g.Size && r.Wanted == g.Size {
		fmt.Fprintf(&b, " (%d at least)", g.Min)
	}
	if r.Wanted < g.Size {
		fmt.Fprintf(&b, " (%d of %d are on nodes)", g.Size-r.Wanted, g.Size)
	}
	fits := "fit"
	if r.Fits == 1 {
		fits = "fits"
	}
	fmt.Fprintf(&b, ", %d %s: ", r.Fits, fits)
	if r.Nodes == 0 {
		return b.String() + "the cluster has no nodes"
	}
	b.WriteString(Count(r.Nodes, "node", "nodes"))
	for _, c := range sortedCauses(r.Excluded) {
		nodes := r.Excluded[c]
		fmt.Fprintf(&b, ", %d %s", len(nodes), c.phrase(role))
		if c.Kind == Unhealthy { // needs an administrator
			b.WriteString(": " + some(nodes))
		}
	}
	for _, l := range r.Levels {
		b.WriteString("; " + l.text())
	}
	if r.Unblock != "" {
		b.WriteString("; " + r.Unblock)
	}
	return b.String()
}

func (l LevelCount) text() string {
	if l.Held {
		return fmt.Sprintf("%s %s, where the others are, has room for %d", l.Level, l.Best, l.Most)
	}
	text := fmt.Sprintf("%s: %d of %d have room for %d", l.Level, l.Enough, l.Domains, l.Wanted)
	if l.Needed > 1 {
		text += fmt.Sprintf(" (%d needed)", l.Needed)
	}
	if l.Enough == 0 && l.Best != "" {
		text += fmt.Sprintf(" (most: %s with %d)", l.Best, l.Most)
	}
	return text
}

// some formats the first few names.
func some(names []string) string {
	text := strings.Join(names[:min(len(names), shownNames)], " ")
	if more := len(names) - shownNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (c Cause) phrase(role Role) string {
	switch c.Kind {
	case Insufficient:
		shown, ok := role.Shown[c.Name]
		if !ok {
			shown = fmt.Sprint(role.Requests[c.Name])
		}
		return fmt.Sprintf("without free %s (%s requested)", c.Name, shown)
	case Refused:
		return "refused by " + c.Name
	default:
		return c.String()
	}
}
