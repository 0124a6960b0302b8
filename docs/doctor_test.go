package docs

import (
	"regexp"
	"slices"
	"testing"
)

// TestDoctorPage: each check of kubectl holdfast doctor has a section, and no other section is named like a check.
func TestDoctorPage(t *testing.T) {
	names := func(file, match string) (found []string) {
		for _, m := range regexp.MustCompile(match).FindAllStringSubmatch(page(t, file), -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		return found
	}
	checks := names("../cmd/kubectl-holdfast/doctor/doctor.go", `(?m)^\t\{"(\w+)", \w+, \w+\},$`)
	if sections := names("doctor.md", `(?m)^### (\w+)$`); len(checks) < 10 || !slices.Equal(checks, sections) {
		t.Errorf("docs/doctor.md has sections %v, the checks are %v", sections, checks)
	}
}
