package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// namesOfOthers are names that pages take from Kubernetes, PyTorch, NCCL and other projects.
var namesOfOthers = strings.Fields(`
	BatchNorm CheckpointEngine FailedToRetrieveImagePullSecret FailedToSchedule PlacementGenerate ShardedTensor SuccessCriteriaMet
	dnsPolicy managedFields mergePodStatus ncclInvalidUsage nodeLeaseDurationSeconds nominalQuota preemptionPolicy resourceClaimName
	singleProcessOOMKill terminationGracePeriod utils/kubernetes/listers.go`)

var kindsOfText = []string{".go", ".py", ".sh", ".proto", ".yaml", ".txt"}

var (
	quoted    = regexp.MustCompile("`([^`\n]+)`")
	anyWord   = regexp.MustCompile(`\w+`)
	aTest     = regexp.MustCompile(`^(?:Test|Fuzz)[A-Z]\w*$`)
	aFile     = regexp.MustCompile(`^[\w./-]+\.(?:go|py|sh)$`)
	mixedCase = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*$`)
	qualified = regexp.MustCompile(`^([a-z]\w*)\.([A-Z]\w*)(?:\.\w+)?$`)
)

// tree is what pages may name: the paths of its files, the words of those outside docs, and the tests and names of each package.
type tree struct {
	paths    []string
	words    map[string]bool
	tests    map[string]bool
	packages map[string]map[string]bool
}

func readTree(t *testing.T) tree {
	t.Helper()
	have := tree{words: map[string]bool{}, tests: map[string]bool{}, packages: map[string]map[string]bool{}}
	declaredTest := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "../bin" || path == "../docs" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return filepath.SkipDir
		case d.IsDir() || !slices.Contains(kindsOfText, filepath.Ext(path)):
			return nil
		}
		have.paths = append(have.paths, path)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		words := map[string]bool{}
		for _, w := range anyWord.FindAllString(string(text), -1) {
			have.words[w], words[w] = true, true
		}
		if filepath.Ext(path) == ".go" {
			name := filepath.Base(filepath.Dir(path))
			if have.packages[name] == nil {
				have.packages[name] = map[string]bool{}
			}
			for w := range words {
				have.packages[name][w] = true
			}
			for _, m := range declaredTest.FindAllStringSubmatch(string(text), -1) {
				have.tests[m[1]] = true
			}
		}
		return nil
	})
	if err != nil || len(have.paths) < 500 {
		t.Fatalf("read %d files, %v", len(have.paths), err)
	}
	return have
}

// missing is why a quoted text of a page names nothing, or "".
func (have tree) missing(text string) string {
	switch {
	case aTest.MatchString(text):
		if !have.tests[text] {
			return "no such test"
		}
	case aFile.MatchString(text) && strings.Contains(text, "/") && !strings.HasPrefix(text, "/"):
		for _, p := range have.paths {
			if strings.HasSuffix(p, "/"+text) {
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

// TestPagesNameWhatThereIs: tests, files and names of code that a page quotes are there.
func TestPagesNameWhatThereIs(t *testing.T) {
	have, others := readTree(t), map[string]bool{}
	for _, name := range namesOfOthers {
		others[name] = true
	}
	seen := map[string]int{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" || path != "../README.md" && !strings.HasPrefix(path, "../docs/") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
			why := have.missing(m[1])
			if why != "" && !others[m[1]] {
				t.Errorf("%s names `%s`: %s", path, m[1], why)
			}
			if why == "" && aTest.MatchString(m[1]) {
				seen[path]++
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen["../docs/threat-model.md"] < 20 {
		t.Errorf("threat-model.md names %d tests, so this test does not see them", seen["../docs/threat-model.md"])
	}
}
