//go:build linux

package conformance

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// installed is the interpreter whose PyTorch is compared, unless HOLDFAST_CONFORMANCE_PYTHON names another.
const installed = "/opt/holdfast-python/venv/bin/python3"

func python(t *testing.T) string {
	t.Helper()
	file := os.Getenv("HOLDFAST_CONFORMANCE_PYTHON")
	if file == "" {
		file = installed
	}
	if _, err := os.Stat(file); err != nil {
		t.Skipf("SKIPPED: there is no %s with PyTorch: hack/python.sh makes it", file)
	}
	return file
}

// asIs: the installed PyTorch is the one of the lists of differences, so that an unused entry is a failure.
func asIs() bool { return os.Getenv("HOLDFAST_CONFORMANCE_PYTHON") == "" }

// script is the absolute path of a script of this package.
func script(t *testing.T, name string) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("scripts", name))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// ask runs parse.py and reads one JSON value from each line of its output.
func ask[A any](t *testing.T, verb string, lines ...any) (answers []A) {
	t.Helper()
	hook, err := filepath.Abs("../../ckptagent/python")
	if err != nil {
		t.Fatal(err)
	}
	var in, errs bytes.Buffer
	for _, line := range lines {
		if err := json.NewEncoder(&in).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python(t), script(t, "parse.py"), verb, hook)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "TMPDIR=" + t.TempDir()}
	cmd.Dir, cmd.Stdin, cmd.Stderr = t.TempDir(), &in, &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("asking PyTorch: %v\n%s", err, &errs)
	}
	for line := range strings.Lines(string(out)) {
		var a A
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		answers = append(answers, a)
	}
	return answers
}
