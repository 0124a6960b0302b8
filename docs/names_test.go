package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	read "holdfast.dev/holdfast/internal/tree"
)

// namesOfOthers are names of Kubernetes, PyTorch, NCCL and other projects that pages use.
var namesOfOthers = strings.Fields(`
	BatchNorm CheckpointEngine FailedCreatePod FailedToRetrieveImagePullSecret FailedToSchedule PlacementGenerate ResumeJob ShardedTensor
	SuccessCriteriaMet dnsPolicy managedFields mergePodStatus ncclInvalidUsage nodeLeaseDurationSeconds nominalQuota preemptionPolicy replicaStatuses
	resourceClaimName singleProcessOOMKill terminationGracePeriod utils/kubernetes/listers.go`)

var kindsOfText = []string{".go", ".py", ".sh", ".proto", ".yaml", ".txt"}

var (
	quoted    = regexp.MustCompile("`([^`\n]+)`")
	anyWord   = regexp.MustCompile(`\w+`)
	aTest     = regexp.MustCompile(`^(?:Test|Fuzz)[A-Z]\w*$`)
	aFile     = regexp.MustCompile(`^[\w./-]+\.(?:go|py|sh)$`)
	mixedCase = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*$`)
	qualified = regexp.MustCompile(`^([a-z]\w*)\.([A-Z]\w*)(?:\.\w+)?$`)
)

// tree has what pages may name: the paths of its files, the words of those outside docs, and the tests and names of each package.
type tree struct {
	paths    []string
	words    map[string]bool
	tests    map[string]bool
	packages map[string]map[string]bool
}

func readTree(files map[string]string) tree {
	have := tree{words: map[string]bool{}, tests: map[string]bool{}, packages: map[string]map[string]bool{}}
	declaredTest := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for path, text := range files {
		if strings.HasPrefix(path, "docs/") || !slices.Contains(kindsOfText, filepath.Ext(path)) {
			continue
		}
		have.paths = append(have.paths, path)
		names := map[string]bool{}
		if name := filepath.Base(filepath.Dir(path)); filepath.Ext(path) == ".go" {
			if have.packages[name] == nil {
				have.packages[name] = names
			}
			names = have.packages[name]
			for _, m := range declaredTest.FindAllStringSubmatch(text, -1) {
				have.tests[m[1]] = true
			}
		}
		for _, w := range anyWord.FindAllString(text, -1) {
			have.words[w], names[w] = true, true
		}
	}
	return have
}

// missing returns why a page's quoted text is the name of nothing in the tree, or "".
func (have tree) missing(text string) string {
	switch {
	case aTest.MatchString(text):
		if !have.tests[text] {
			return "no such test"
		}
	case aFile.MatchString(text) && strings.Contains(text, "/") && !strings.HasPrefix(text, "/"):
		for _, p := range have.paths {
			if p == text || strings.HasSuffix(p, "/"+text) {
				return ""
			}
		}
		return "no such file"
	case qualified.MatchString(text):
		m := qualified.FindStringSubmatch(text)
		if names := have.packages[m[1]]; names != nil && !names[m[2]] {
			return "package " + m[1] + " has no " + m[2]
		}
	case mixedCase.MatchString(text) && !have.words[text]:
		return "no such name"
	}
	return ""
}

// TestPagesNameWhatThereIs: the tests, files and names of code that a page quotes exist.
func TestPagesNameWhatThereIs(t *testing.T) {
	files := read.Read(t, "..")
	have, others := readTree(files), map[string]bool{}
	for _, name := range namesOfOthers {
		others[name] = true
	}
	attacks := 0
	for path, text := range files {
		if filepath.Ext(path) != ".md" || path != "README.md" && !strings.HasPrefix(path, "docs/") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			why := have.missing(m[1])
			if why != "" && !others[m[1]] {
				t.Errorf("%s names `%s`: %s", path, m[1], why)
			}
			if why == "" && aTest.MatchString(m[1]) && path == "docs/threat-model.md" {
				attacks++
			}
		}
	}
	if attacks < 20 {
		t.Errorf("threat-model.md names %d tests, so this test does not see them", attacks)
	}
}
