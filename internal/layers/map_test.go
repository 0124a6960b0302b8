package layers

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const (
	root = "../../"
	page = "docs/architecture.md"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// readMap returns the kind of each folder of the map in docs/architecture.md.
func readMap(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(root + page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Map\n")
	table, _, _ = strings.Cut(table, "\n## ")
	kinds := map[string]string{}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
			folder, promise := name[1], strings.TrimSpace(cells[3])
			if kinds[folder] != "" {
				t.Errorf("%s is in the map twice", folder)
			}
			if kinds[folder] = strings.TrimSpace(cells[2]); promise == "" {
				t.Errorf("the map does not say what %s promises", folder)
			}
			if st, err := os.Stat(root + folder); err != nil || !st.IsDir() {
				t.Errorf("%s is in the map and not in the tree", folder)
			}
		}
	}
	if len(kinds) < 40 {
		t.Fatalf("found %d folders in the map, so this test misreads %s", len(kinds), page)
	}
	return kinds
}

// TestMapIsTheTree: each package has its own row in the map, except parts of a binary, parts of a test, and fakes such as
// net/http/httptest.
func TestMapIsTheTree(t *testing.T) {
	kinds := readMap(t)
	for _, p := range load(t) {
		name := p.rel()
		if within(name, []string{"cmd", "test"}) || strings.HasSuffix(name, "test") {
			for kinds[name] == "" && strings.Contains(name, "/") {
				name = name[:strings.LastIndex(name, "/")]
			}
		}
		if kinds[name] == "" {
			t.Errorf("%s has no line in the map of %s: say there what it promises", p.rel(), page)
		}
	}
	for kind, list := range map[string]map[string][]string{"core": cores, "reader": readers} {
		for name := range list {
			if kinds[name] != kind {
				t.Errorf("%s is a %s here, in the map it is %q", name, kind, kinds[name])
			}
		}
		for name, k := range kinds {
			if _, listed := list[name]; k == kind && !listed {
				t.Errorf("%s is a %s in the map, and is not checked here", name, kind)
			}
		}
	}
}
