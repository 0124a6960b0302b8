//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reported returns a fake Python interpreter. The fake records its arguments and the path of the client that it would import, prints
// lines, and exits with code.
func reported(t *testing.T, code string) (python, asked string) {
	t.Helper()
	dir := t.TempDir()
	python, asked = filepath.Join(dir, "python"), filepath.Join(dir, "asked")
	script := "#!/bin/sh\necho \"$@\" > " + asked + "\nclient=${PYTHONPATH%%:*}\nls $client >> " + asked + "\nls $client/holdfast/export.py >> " + asked + "\necho out; echo err >&2\nexit " + code + "\n"
	if err := os.WriteFile(python, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return python, asked
}

// TestCkptExport: the command runs the client that is embedded in the binary on the job's folder, and then removes the client's files.
func TestCkptExport(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) // no cluster is queried
	t.Setenv("HOME", t.TempDir())
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Setenv("PYTHONPATH", "/elsewhere")
	claim := t.TempDir()
	dir := filepath.Join(claim, "train-u-1")
	stored(t, dir, 10)
	python, asked := reported(t, "0")
	for _, from := range []string{claim, dir} {
		out, said, code := holdfast(t, "ckpt", "export", "/scratch/x", "--dir", from, "--to", "dcp", "--step", "10", "--trust", "--python", python)
		b, err := os.ReadFile(asked)
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		if err != nil || code != 0 || out != "out\n" || said != "err\n" || len(lines) != 3 ||
			lines[0] != "-m holdfast.export "+dir+" /scratch/x --to dcp --step 10 --trust" || lines[1] != "holdfast" || !strings.HasSuffix(lines[2], "/holdfast/export.py") {
			t.Errorf("code %d, %q, %q, asked %q, %v", code, out, said, lines, err)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	stored(t, filepath.Join(claim, "other-u-2"), 10)
	refused, _ := reported(t, "1")
	crashed, _ := reported(t, "3")
	for name, c := range map[string]struct {
		args []string
		want string
		code int
	}{
		"where nothing is mounted":  {[]string{"/x", "--to", "dcp"}, "--dir: name where the job's claim is mounted", 1},
		"to no format":              {[]string{"/x", "--dir", dir, "--to", "onnx"}, `--to "onnx": must be one of dcp, torch, safetensors`, 1},
		"of several jobs":           {[]string{"/x", "--dir", claim, "--to", "dcp"}, "name the job, as KIND/NAME, or one of other-u-2, train-u-1", 1},
		"of no job":                 {[]string{"/x", "--dir", t.TempDir(), "--to", "dcp"}, "holds no folder of a job", 1},
		"without Python":            {[]string{"/x", "--dir", dir, "--to", "dcp", "--python", "/none/python3"}, "--python /none/python3: no such file or directory: name a Python 3.10 or newer with torch 2.4 or newer", 1},
		"what the client refuses":   {[]string{"/x", "--dir", dir, "--to", "dcp", "--python", refused}, "err\n", 1},
		"a Python that cannot":      {[]string{"/x", "--dir", dir, "--to", "dcp", "--python", crashed}, "ended with exit status 3", 1},
		"a step that is no number":  {[]string{"/x", "--dir", dir, "--to", "dcp", "--step", "-1"}, "--step -1: give the number of a step", 1},
		"without a place to put it": {[]string{"--dir", dir, "--to", "dcp"}, "name what to write", 1},
	} {
		if _, said, code := holdfast(t, append([]string{"ckpt", "export"}, c.args...)...); code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%s: code %d, %s", name, code, said)
		}
	}
}

// TestTheCarriedClientIsWhole: Python finds all imports of the unpacked client. The client reports what is wrong with the step.
func TestTheCarriedClientIsWhole(t *testing.T) {
	t.Setenv("PYTHONPATH", "")
	dir := filepath.Join(t.TempDir(), "train-u-1")
	stored(t, dir, 10)
	out := filepath.Join(t.TempDir(), "out")
	// the state is invalid, and torch is not installed
	for step, want := range map[string]string{"10": "holdfast.export: ", "11": "holdfast.export: "} {
		if _, said, code := holdfast(t, "ckpt", "export", out, "--dir", dir, "--to", "torch", "--step", step); code != 1 || !strings.HasPrefix(said, want) {
			t.Errorf("step %s: code %d, %s", step, code, said)
		}
	}
}

// TestExportImportsNothingFromWherePeopleAre: the current folder of the user is often the claim, in which pods of any job can write files.
// Python imports nothing from it. Relative paths still work.
func TestExportImportsNothingFromWherePeopleAre(t *testing.T) {
	t.Setenv("PYTHONPATH", "")
	claim := t.TempDir()
	stored(t, filepath.Join(claim, "train-u-1"), 10)
	for _, name := range []string{"torch.py", "argparse.py", "holdfast/__init__.py", "holdfast/export.py"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(claim, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(claim, name), []byte("open('"+filepath.Join(claim, "ran")+"', 'w')\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(claim)
	if _, said, code := holdfast(t, "ckpt", "export", "out", "--dir", "train-u-1", "--to", "torch"); code != 1 || !strings.HasPrefix(said, "holdfast.export: ") {
		t.Errorf("code %d, %s", code, said)
	}
	if _, err := os.Stat(filepath.Join(claim, "ran")); err == nil {
		t.Error("a file of the claim was run")
	}
	python, asked := reported(t, "0")
	if err := os.Symlink(python, "python"); err != nil {
		t.Fatal(err)
	}
	if _, said, code := holdfast(t, "ckpt", "export", "out", "--dir", ".", "--to", "dcp", "--python", "./python"); code != 0 {
		t.Errorf("code %d, %s", code, said)
	}
	if b, err := os.ReadFile(asked); err != nil || !strings.HasPrefix(string(b), "-m holdfast.export "+filepath.Join(claim, "train-u-1")+" "+filepath.Join(claim, "out")+" --to dcp") {
		t.Errorf("asked %q, %v", b, err)
	}
}
