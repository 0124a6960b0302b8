package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeptBinaries: test binaries of packages with the same last element are in different folders, the same ones in each run. Packages
// without tests are left out. A package that fails does not stop the others.
func TestKeptBinaries(t *testing.T) {
	dir := folder(t, "gotest.sh", map[string]string{
		"a/x/x_test.go": "", "b/x/x_test.go": "", "c/c_test.go": "", "none/none.go": "",
		"bin/go": "#!/bin/bash\necho \"${@:4}\" >>calls\n[ -z \"$RACE\" ] || [ $CGO_ENABLED = 1 ] || exit 1\n[ -z \"$FAIL\" ] || exit 1\n",
	})
	const module = "holdfast.dev/holdfast/"
	kept := filepath.Join(dir, ".cache/test-binaries")
	for _, c := range []struct {
		args  string
		fail  string
		race  string
		again string
		want  []string
	}{
		{"build " + module + "a/x " + module + "b/x " + module + "c " + module + "none", "", "", "-",
			[]string{"-o " + kept + "/1/ " + module + "a/x " + module + "c -c", "-o " + kept + "/2/ " + module + "b/x -c"}},
		{"run -count=1 -run A|B -- ./b/x", "", "", "-", []string{"-o " + kept + "/2/ ./b/x -count=1 -run A|B"}},
		{"run -- ./a/x ./b/x", "1", "", "-", []string{"-o " + kept + "/1/ ./a/x", "-o " + kept + "/2/ ./b/x"}},
		{"run -v -- ./a/x ./b/x", "", "1", "-", []string{"-race -o " + kept + "/race/1/ ./a/x -v", "-race -o " + kept + "/race/2/ ./b/x -v"}},
		{"run -v -- ./a/x " + module + "b/x", "", "", "b/x TestB", []string{"-o " + kept + "/2/ " + module + "b/x -v -count=1 -run ^TestB$"}},
		{"run -run ^TestA$/^kill$ -- ./a/x", "", "", "a/x TestA", []string{"-o " + kept + "/1/ ./a/x -run ^TestA$/^kill$ -count=1 -run ^TestA$/^kill$"}},
		{"run -v -- ./a/x", "", "", "b/x TestB", nil},
		{"run -v -- ./a/x", "", "", " ", []string{"-o " + kept + "/1/ ./a/x -v -count=1"}},
	} {
		_ = os.Remove(filepath.Join(dir, "calls"))
		cmd := exec.Command("bash", append([]string{filepath.Join(dir, "hack/gotest.sh")}, strings.Fields(c.args)...)...)
		cmd.Env = append(os.Environ(), "FAIL="+c.fail, "RACE="+c.race, "CGO_ENABLED=0", "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		if c.again != "-" {
			cmd.Env = append(cmd.Env, "AGAIN="+c.again)
		}
		if out, err := cmd.CombinedOutput(); (err != nil) != (c.fail != "") {
			t.Errorf("%s: %v: %s", c.args, err, out)
		}
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && c.want != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(calls)); got != strings.Join(c.want, "\n") {
			t.Errorf("%s called go with\n%s\nnot with\n%s", c.args, got, strings.Join(c.want, "\n"))
		}
	}
}
