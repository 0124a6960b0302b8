package layers

import (
	"slices"
	"strings"
	"testing"
)

// rooms lists, for trees of packages with rules among themselves, which package may import which: only packages further down. Test files do
// not count.
var rooms = map[string][]string{
	"plugin":            {"plugin/claims", "plugin/external", "plugin/gangcache", "plugin/planner", "plugin/preemption", "plugin/serve"},
	"plugin/serve":      {"plugin/claims", "plugin/gangcache", "plugin/planner", "plugin/preemption"},
	"plugin/preemption": {"plugin/claims", "plugin/gangcache", "plugin/planner"},
	"plugin/planner":    {"plugin/claims", "plugin/external", "plugin/gangcache"},
	"plugin/claims":     {"plugin/gangcache"},
	"plugin/external":   {"plugin/gangcache"},
	"plugin/gangcache":  {},
	"plugin/ask":        {},
}

// inside lists which packages of such a tree may import a foreign tree, and why. Test files count.
var inside = []struct {
	tree, why string
	allowed   []string
}{
	{"k8s.io/kubernetes", "it drags the whole of Kubernetes into a test", []string{"plugin", "plugin/planner", "plugin/preemption", "plugin/serve", "plugin/frameworktest"}},
	{"k8s.io/kube-scheduler", "who knows no scheduler cannot call back into it", []string{"plugin", "plugin/claims", "plugin/planner", "plugin/preemption", "plugin/serve", "plugin/frameworktest"}},
	{"sigs.k8s.io/scheduler-plugins", "its types are read in one place", []string{"plugin/external"}},
	{"volcano.sh/apis", "its types are read in one place", []string{"plugin/external"}},
}

// forTests are packages that only tests, and other packages of this list, may import.
var forTests = []string{"ckptagent/coord/coordtest", "elastic/coordinator/coordinatortest", "internal/golden", "internal/jobs/jobstest", "plugin/plugintest", "plugin/frameworktest"}

func TestRoomsImportDownwards(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range load(t) {
		below, listed := rooms[p.rel()]
		seen[p.rel()] = true
		for _, imp := range p.Imports {
			imp = strings.TrimPrefix(imp, module)
			seen[p.rel()+" "+imp] = true
			if _, same := rooms[imp]; listed && same && !slices.Contains(below, imp) {
				t.Errorf("%s imports %s; of its room it may import only %v", p.rel(), imp, below)
			}
		}
		if room, _, _ := strings.Cut(p.rel(), "/"); !listed && rooms[room] != nil && !slices.Contains(forTests, p.rel()) {
			t.Errorf("%s is not listed in its room", p.rel())
		}
	}
	for p, below := range rooms {
		if !seen[p] {
			t.Errorf("%s is listed here but not in the tree", p)
		}
		for _, b := range below {
			if !seen[p+" "+b] {
				t.Errorf("%s may import %s and does not: take it off the list", p, b)
			}
		}
	}
}

func TestForeignTreesStayBehindInnerWalls(t *testing.T) {
	used := map[string]bool{}
	for _, p := range load(t) {
		if room, _, _ := strings.Cut(p.rel(), "/"); rooms[room] == nil {
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			for _, rule := range inside {
				switch {
				case !within(imp, []string{rule.tree}):
				case slices.Contains(rule.allowed, p.rel()):
					used[rule.tree+" in "+p.rel()] = true
				default:
					t.Errorf("%s imports %s; of its room only %v may, because %s", p.rel(), imp, rule.allowed, rule.why)
				}
			}
		}
	}
	for _, rule := range inside {
		for _, p := range rule.allowed {
			if !used[rule.tree+" in "+p] {
				t.Errorf("%s may import %s and does not: take it off the list", p, rule.tree)
			}
		}
	}
}

func TestHelpOfTestsIsForTests(t *testing.T) {
	for _, p := range load(t) {
		for _, help := range forTests {
			if slices.Contains(p.Imports, module+help) && !slices.Contains(forTests, p.rel()) {
				t.Errorf("%s imports %s, which is for tests", p.rel(), help)
			}
		}
	}
}
