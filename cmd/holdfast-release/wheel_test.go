package main

import (
	"archive/zip"
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast.dev/holdfast/ckptagent/python"
)

// fakeWheels writes the wheels of programs that are scripts.
func fakeWheels(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for _, name := range wheelPrograms {
		at := filepath.Join(bin, "amd64", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte("#!/bin/sh\necho "+name+" of the wheel\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := options{bin: bin, version: "v0.1.0-rc.2", archs: "amd64", out: t.TempDir()}
	if err := o.wheels(io.Discard); err != nil {
		t.Fatal(err)
	}
	return o.out
}

const anyWheel, linuxWheel = "holdfast-0.1.0rc2-py3-none-any.whl", "holdfast-0.1.0rc2-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl"

// TestWheelHasTheInjectedFiles: the package of each wheel is what pods get, and nothing else.
func TestWheelHasTheInjectedFiles(t *testing.T) {
	dir := fakeWheels(t)
	for name, programs := range map[string]int{anyWheel: 0, linuxWheel: len(wheelPrograms)} {
		w, err := zip.OpenReader(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		err = fs.WalkDir(python.Files, "holdfast", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			want, err := python.Files.ReadFile(path)
			if err != nil {
				return err
			}
			if got, err := fs.ReadFile(w, path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s is another file than pods get: %v", name, path, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range w.File {
			switch _, err := fs.Stat(python.Files, f.Name); {
			case err == nil, strings.Contains(f.Name, ".dist-info/"), f.Name == "holdfast/py.typed":
			case strings.Contains(f.Name, ".data/scripts/") && f.Mode().Perm() == 0o755:
				programs--
			default:
				t.Errorf("%s holds %s", name, f.Name)
			}
		}
		if programs != 0 {
			t.Errorf("%s lacks %d programs", name, programs)
		}
	}
}

// TestWheelWorks: the installed package does nothing without an agent, and the programs can be run.
func TestWheelWorks(t *testing.T) {
	dir, at := fakeWheels(t), t.TempDir()
	pip := exec.Command("python3", "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--target", at, filepath.Join(dir, linuxWheel))
	if out, err := pip.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "No module named pip") || strings.Contains(string(out), "is not a supported wheel") {
			t.Skipf("this machine's pip cannot install the wheel: %s", out)
		}
		t.Fatalf("pip: %v: %s", err, out)
	}
	py := exec.Command("python3", "-c", "import holdfast; ck = holdfast.attach(); ck.track(x=[1]); print(holdfast.__file__, ck.restore(), ck.save(1))")
	py.Env = append(os.Environ(), "PYTHONPATH="+at, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := py.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), at) || !strings.Contains(string(out), " 0 ") {
		t.Errorf("%v: %s", err, out)
	}
	for _, name := range wheelPrograms {
		if out, err := exec.Command(filepath.Join(at, "bin", name)).CombinedOutput(); err != nil || string(out) != name+" of the wheel\n" {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{"v0.1.0": "0.1.0", "v0.1.0-dev": "0.1.0.dev0", "v1.2.3-rc.4": "1.2.3rc4", "v1": "", "0.1.0": "", "v0.1.0-x": ""} {
		if got, err := pythonVersion(version); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", version, got, err)
		}
	}
}
