package waiting

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/internal/protocol"
)

// MaxText bounds the text of a verdict, which tenants' functions and files are part of.
const MaxText = 480

// mostNamed bounds the ranks of a group that a text names, mostGroups the groups.
const mostNamed, mostGroups = 4, 4

// what is known of each kind, for users.
var meanings = map[Kind]string{
	Unexplained:   "too little is known to say why",
	Stopped:       "stopped by a signal or a debugger",
	StorageStalls: "a file system does not answer on several nodes",
	Hang:          "stands still inside torch or a device",
	WaitsOutside:  "waits for something outside the gang",
	EndedEarly:    "ended with exit code 0 while others wait for it",
	Desync:        "ranks called different operations at the same point",
	Deadlock:      "ranks wait for each other in a circle",
	FabricHang:    "all ranks have begun an operation that does not end",
}

// Meaning returns what a kind says, for users.
func (k Kind) Meaning() string { return meanings[k] }

// Stands reports whether ranks stand still, and it is known why.
func (k Kind) Stands() bool { return k != Unexplained && meanings[k] != "" }

// describe sets the texts.
func (j *judge) describe(v *Verdict, o findings, desync map[string][]int) {
	parts := []string{}
	named := v.Culprits
	switch v.Kind {
	case Busy:
		if named = o.busy; v.Phase {
			named = o.phases
			parts = j.phases(named)
		} else {
			parts = append(parts, fmt.Sprintf("%s: %s", v.Activity, j.those(named)))
		}
	case Unexplained:
		parts = append(parts, j.lacking(v, o))
	case Desync:
		calls := slices.Sorted(maps.Keys(desync))
		for _, what := range calls[:min(len(calls), mostGroups)] {
			parts = append(parts, fmt.Sprintf("%s: %s", ranksText(desync[what]), what))
		}
		if n := len(calls) - mostGroups; n > 0 {
			parts = append(parts, fmt.Sprintf("%d more calls", n))
		}
		v.Signature = strings.Join(calls[:min(len(calls), mostGroups)], ", ")
	case Deadlock:
		parts = append(parts, j.groupsOf(o.circle, nil, false)...)
	case StorageStalls, Hang, WaitsOutside, EndedEarly, Stopped, FabricHang:
		parts = append(parts, j.groupsOf(named, nil, true)...)
	}
	if v.Kind != Deadlock && v.Kind != Desync && v.Kind != Unexplained {
		all := make([]int, len(j.ranks))
		for r := range all {
			all[r] = r
		}
		parts = append(parts, j.groupsOf(all, named, false)...)
	}
	if v.Missing > 0 && v.Kind != Unexplained {
		parts = append(parts, "no looks at "+count(v.Missing))
	}
	v.Text = cause.Cut(strings.Join(parts, "; "), MaxText)
	if v.Signature == "" {
		v.Signature = meanings[v.Kind]
	}
}

// phases groups ranks by the phase that they have open, the largest groups first. Of a group, the one with the longest lease left counts.
func (j *judge) phases(ranks []int) (out []string) {
	by := map[string][]int{}
	for _, r := range ranks {
		by[j.phase(r).Name] = append(by[j.phase(r).Name], r)
	}
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(len(by[b]), len(by[a])), cmp.Compare(a, b)) })
	for _, name := range names[:min(len(names), mostGroups)] {
		longest := slices.MaxFunc(by[name], func(a, b int) int { return cmp.Compare(j.phase(a).Left, j.phase(b).Left) })
		out = append(out, fmt.Sprintf("%s: phase %s, %s", j.those(by[name]), name, spent(j.phase(longest))))
	}
	if n := len(names) - mostGroups; n > 0 {
		out = append(out, fmt.Sprintf("%d more phases", n))
	}
	return out
}

// spent returns how much of a lease has passed, such as "3 min of 20".
func spent(p *protocol.Phase) string {
	unit, name := time.Second, "s"
	switch {
	case p.Of >= 10*time.Hour:
		unit, name = time.Hour, "h"
	case p.Of >= 5*time.Minute:
		unit, name = time.Minute, "min"
	}
	return fmt.Sprintf("%d %s of %d", (p.Of-p.Left)/unit, name, (p.Of+unit-1)/unit)
}

// lacking returns what evidence is missing.
func (j *judge) lacking(v *Verdict, o findings) string {
	switch {
	case v.Missing > 0:
		return fmt.Sprintf("too few looks at %s", j.those(j.missing()))
	case len(o.unknown) > 0:
		return "no stack and no recorder: " + j.those(o.unknown)
	case len(o.unclear) > 0:
		return "it is not clear who waits for whom: " + strings.Join(j.groupsOf(o.unclear, nil, false), "; ")
	}
	return "most ranks stand still in the script's own code, where no recorder says for whom they wait"
}

func (j *judge) missing() (out []int) {
	for r := range j.facts {
		if !j.facts[r].compared && !j.ranks[r].Ended {
			out = append(out, r)
		}
	}
	return out
}

// those names ranks with their slots.
func (j *judge) those(ranks []int) string {
	if len(ranks) == 1 {
		return j.name(ranks[0])
	}
	return ranksText(ranks)
}

// name names a rank with its node.
func (j *judge) name(r int) string {
	return fmt.Sprintf("rank %d on %s", r, cmp.Or(j.ranks[r].Node, fmt.Sprintf("slot %d", j.ranks[r].Slot)))
}

// in says where a rank is and, of a root, what NCCL's RAS shows of it.
func (j *judge) in(r int, root bool) string {
	text := j.at(r, root)
	if f := faultTexts[j.noted[r]]; root && f != "" {
		text += ", " + f
	}
	return text
}

// at says where a rank is: in its operation, or, for a root, in its stack.
func (j *judge) at(r int, root bool) string {
	f := &j.facts[r]
	switch {
	case j.ranks[r].Ended:
		return "ended with exit code 0"
	case f.last == nil:
		return "unknown"
	}
	if !root || j.together[r] && !f.aside() {
		for i := range f.last.Groups {
			if o := open(&f.last.Groups[i]); o != nil {
				return fmt.Sprintf("%s %d", short(o.Name), o.Seq)
			}
		}
	}
	return f.what
}

// groupsOf groups ranks by where they are, the largest groups first, without those that are named before. A rank that is alone somewhere is
// named with its node, and the first ranks of a group of roots are named.
func (j *judge) groupsOf(ranks, named []int, roots bool) []string {
	by := map[string][]int{}
	for _, r := range ranks {
		if _, found := slices.BinarySearch(named, r); !found {
			by[j.in(r, roots)] = append(by[j.in(r, roots)], r)
		}
	}
	whats := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(by[b]), len(by[a])), cmp.Compare(by[a][0], by[b][0]))
	})
	out := []string{}
	for _, what := range whats[:min(len(whats), mostGroups)] {
		who := count(len(by[what]))
		if roots || len(by[what]) == 1 {
			who = j.those(by[what])
		}
		out = append(out, who+": "+what)
	}
	rest := 0
	for _, what := range whats[min(len(whats), mostGroups):] {
		rest += len(by[what])
	}
	if rest > 0 {
		out = append(out, count(rest)+" elsewhere")
	}
	return out
}

func count(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// ranksText lists the first ranks.
func ranksText(ranks []int) string {
	text := []string{}
	for _, r := range ranks[:min(len(ranks), mostNamed)] {
		text = append(text, fmt.Sprint(r))
	}
	more := ""
	if n := len(ranks) - mostNamed; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	if len(ranks) == 1 {
		return "rank " + text[0]
	}
	return "ranks " + strings.Join(text, ", ") + more
}

// short returns the name of an operation without its backend.
func short(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }
