package layers

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "holdfast.dev/holdfast/"

// cores lists every core with the cores that it may import. Otherwise a core imports only the standard library, so that the same input
// gives the same output, wherever it runs.
var cores = map[string][]string{
	"topology":             {},
	"nodehealth":           {},
	"gang":                 {"topology"},
	"gang/rejection":       {},
	"gang/observe":         {},
	"gang/provision":       {},
	"gang/preemption":      {"gang", "topology"},
	"internal/protocol":    {},
	"elastic":              {"elastic/account", "elastic/barrier", "elastic/cause", "elastic/check", "elastic/drain", "elastic/generation", "elastic/ledger", "elastic/members", "elastic/quiet", "elastic/quorum", "elastic/replacements", "elastic/restore", "elastic/waiting", "internal/protocol"},
	"elastic/account":      {"elastic/barrier", "elastic/cause", "elastic/members", "elastic/replacements", "internal/protocol"},
	"elastic/barrier":      {},
	"elastic/cause":        {"internal/protocol"},
	"elastic/check":        {},
	"elastic/drain":        {"elastic/account", "elastic/barrier", "elastic/generation", "elastic/ledger", "elastic/members", "elastic/replacements", "internal/protocol"},
	"elastic/generation":   {"elastic/account", "elastic/cause", "elastic/ledger", "elastic/members", "elastic/replacements", "elastic/restore", "internal/protocol"},
	"elastic/ledger":       {"elastic/members", "elastic/restore", "internal/protocol"},
	"elastic/members":      {"elastic/barrier", "elastic/cause", "elastic/restore", "internal/protocol"},
	"elastic/replacements": {"elastic/cause", "elastic/members"},
	"elastic/quiet":        {},
	"elastic/quorum":       {},
	"elastic/restore":      {"internal/protocol"},
	"elastic/waiting":      {"elastic/cause", "internal/protocol"},
	"ckptagent":            {"internal/protocol"},
	"ckptagent/format":     {"internal/protocol"},
	"ckptagent/launch":     {"internal/protocol"},
	"nodehealth/budget":    {"nodehealth"},
}

// readers convert Kubernetes objects to values, and are as pure as cores. Besides the listed packages they import the types of Kubernetes.
var readers = map[string][]string{
	"gang/handover":       {"api/v1alpha1", "elastic/cause", "gang"},
	"gang/status":         {"api/v1alpha1", "gang", "gang/observe", "internal/kinds", "internal/membership", "internal/settings"},
	"internal/kinds":      {"api/v1alpha1"},
	"internal/membership": {"api/v1alpha1"},
	"internal/settings":   {"api/v1alpha1", "gang", "internal/kinds", "internal/protocol"},
	"internal/slim":       {"api/v1alpha1", "internal/settings"},
}

// kubernetesTypes are the trees that readers may import.
var kubernetesTypes = []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/component-helpers/resource"}

// impure are standard packages that a core must not import: they do I/O, or depend on a clock or a random seed.
var impure = []string{"os", "os/exec", "net", "net/http", "syscall", "log", "log/slog", "math/rand", "io/ioutil", "time/tzdata"}

// only lists which packages may import a foreign tree, and why. Test files count as well.
var only = []struct {
	tree, why string
	allowed   []string
}{
	{"k8s.io/kubernetes", "it drags the whole of Kubernetes into a binary", []string{"plugin", "cmd/holdfast-scheduler", "cmd/holdfast-dev"}},
	{"google.golang.org/grpc", "the conversation has two ends", []string{"elastic/coordinator", "elastic/traces", "ckptagent/coord", "api/coordinator/v1", "test"}},
	{module + "api/coordinator/v1", "what is exchanged is decided on as plain values, and messages are made of them in one place",
		[]string{"internal/protocol/wire", "elastic/coordinator", "ckptagent/coord", "ckptagent/loop", "test"}},
	{"github.com/NVIDIA/go-nvml", "only one program is built with cgo, and its calls may hang for ever", []string{"nodehealth/nvml"}},
	{"sigs.k8s.io/scheduler-plugins", "its types are read in one place, and the rest of it is another scheduler", []string{"internal/membership", "plugin/external", "test"}},
	{"volcano.sh/apis", "its types are read in one place",
		[]string{"gang/handover", "internal/kinds", "internal/membership", "plugin/external", "test"}},
	{"github.com/google/go-containerregistry", "what strangers' registries send is bounded in one place", []string{"webhook/image", "test"}},
	{"go.etcd.io/etcd", "the product keeps no database", []string{"cmd/holdfast-dev"}},
}

type pkg struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func (p pkg) rel() string { return strings.TrimPrefix(p.ImportPath, module) }

// all returns the imports of the package's files, also of its tests.
func (p pkg) all() []string { return slices.Concat(p.Imports, p.TestImports, p.XTestImports) }

// packages are the packages of the module, once load has listed them.
var packages []pkg

func load(t *testing.T) []pkg {
	t.Helper()
	if packages != nil {
		return packages
	}
	list := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports", module+"...")
	list.Env = append(os.Environ(), "CGO_ENABLED=1") // imports of files with cgo count, too
	out, err := list.Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		_, _ = os.ReadDir(p.Dir) // otherwise go test would use a cached result, because it does not see what go list reads
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("found %d packages, so this test looks at the wrong tree", len(all))
	}
	packages = all
	return all
}

func TestCoresArePure(t *testing.T) { pure(t, "core", cores, nil) }

func TestReadersArePure(t *testing.T) { pure(t, "reader", readers, kubernetesTypes) }

// pure checks that packages do no I/O and read no clock, and that each imports everything that it is allowed to import.
func pure(t *testing.T, kind string, list map[string][]string, foreign []string) {
	seen := map[string]bool{}
	for _, p := range load(t) {
		friends, listed := list[p.rel()]
		if !listed {
			continue
		}
		seen[p.rel()] = true
		for _, imp := range p.Imports {
			switch {
			case slices.Contains(impure, imp):
				t.Errorf("%s %s imports %s: a %[1]s does no I/O and reads no clock", kind, p.rel(), imp)
			case strings.HasPrefix(imp, module):
				if !slices.Contains(friends, strings.TrimPrefix(imp, module)) {
					t.Errorf("%s %s imports %s; it may import only %v", kind, p.rel(), imp, friends)
				}
			case strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") && !within(imp, foreign):
				t.Errorf("%s %s imports %s; beside the standard library and %v it may import only %v", kind, p.rel(), imp, friends, foreign)
			}
		}
		for _, friend := range friends {
			if !slices.Contains(p.Imports, module+friend) {
				t.Errorf("%s %s may import %s and does not: take it off the list", kind, p.rel(), friend)
			}
		}
		for _, f := range p.GoFiles {
			if name := clockUse(t, p.Dir+"/"+f); name != "" {
				t.Errorf("%s %s: %s uses %s; time comes in as an argument", kind, p.rel(), f, name)
			}
		}
	}
	for name := range list {
		if !seen[name] {
			t.Errorf("%s %s is listed here but not in the tree", kind, name)
		}
	}
}

func TestForeignTreesStayInTheirRoom(t *testing.T) {
	used := map[string]bool{}
	for _, p := range load(t) {
		for _, imp := range p.all() {
			for _, rule := range only {
				if !within(imp, []string{rule.tree}) {
					continue
				}
				room := slices.IndexFunc(rule.allowed, func(room string) bool { return within(p.rel(), []string{room}) })
				if room >= 0 {
					used[rule.tree+" in "+rule.allowed[room]] = true
				} else {
					t.Errorf("%s imports %s; only %v may, because %s", p.rel(), imp, rule.allowed, rule.why)
				}
			}
			if strings.HasPrefix(imp, module+"cmd/") || strings.HasPrefix(imp, module+"test/") {
				if !within(p.rel(), []string{"cmd", "test"}) {
					t.Errorf("%s imports %s; nothing imports cmd or test", p.rel(), imp)
				}
			}
		}
	}
	for _, rule := range only {
		for _, room := range rule.allowed {
			if !used[rule.tree+" in "+room] {
				t.Errorf("%s may import %s and does not: take it off the list", room, rule.tree)
			}
		}
	}
}

// never lists what a program does not link, directly or through other packages.
var never = []struct {
	program, why string
	trees        []string
}{
	{"cmd/kubectl-holdfast", "it asks the API what is and why, and never schedules", []string{module + "plugin", "k8s.io/kubernetes/pkg/scheduler"}},
	{"cmd/holdfast-agent", "it runs in every pod and knows the coordinator alone", []string{"k8s.io", "sigs.k8s.io"}},
	{"cmd/holdfast-controller", "it reads and makes PodGroups by field, and only the scheduler links other projects' APIs", []string{"volcano.sh", "sigs.k8s.io/scheduler-plugins"}},
}

func TestProgramsLinkOnlyTheirPart(t *testing.T) {
	load(t)
	for _, rule := range never {
		out, err := exec.Command("go", "list", "-deps", module+rule.program).Output()
		if err != nil {
			t.Fatalf("listing what %s links: %v", rule.program, err)
		}
		linked := strings.Fields(string(out))
		if !slices.Contains(linked, module+rule.program) {
			t.Fatalf("%s is listed here but not in the tree", rule.program)
		}
		for _, dep := range linked {
			if within(dep, rule.trees) {
				t.Errorf("%s links %s; it links none of %v, because %s", rule.program, dep, rule.trees, rule.why)
			}
		}
	}
}

func TestPackagesSayWhatTheyPromise(t *testing.T) {
	for _, p := range load(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		if !hasPackageComment(t, p) {
			t.Errorf("%s has no package comment; it should say what the package promises", p.rel())
		}
	}
}

func hasPackageComment(t *testing.T, p pkg) bool {
	for _, f := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), p.Dir+"/"+f, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if file.Doc != nil && len(file.Doc.Text()) > 40 {
			return true
		}
	}
	return false
}

func within(path string, roots []string) bool {
	for _, r := range roots {
		if path == r || strings.HasPrefix(path, r+"/") {
			return true
		}
	}
	return false
}
