package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/test/devcluster/image"
)

// programs puts this test's own program in place of the product's, for one processor.
func programs(t *testing.T, mode os.FileMode) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := filepath.Join(dir, runtime.GOARCH)
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"holdfast-nvml"}, image.Products...) {
		if err := os.WriteFile(filepath.Join(at, name), content, mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestSameDigestsTwice: programs of the same bytes give the same digests, archives and SBOMs, whatever the mode, time and folder of their
// files.
func TestSameDigestsTwice(t *testing.T) {
	var said [2]bytes.Buffer
	var outs [2]string
	for n, mode := range []os.FileMode{0o755, 0o700} {
		o := options{bin: programs(t, mode), version: "v1", archs: runtime.GOARCH, out: t.TempDir()}
		outs[n] = o.out
		if err := o.write(&said[n]); err != nil {
			t.Fatal(err)
		}
		if err := sums(o.out); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(1-n) * 1100 * time.Millisecond) // archives have times in whole seconds
	}
	digests := func(n int) string { return strings.ReplaceAll(said[n].String(), outs[n], "") }
	if digests(0) != digests(1) || strings.Count(digests(0), "sha256:") != len(image.Products) {
		t.Errorf("digests\n%s, then\n%s", digests(0), digests(1))
	}
	first, err := os.ReadFile(filepath.Join(outs[0], sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(filepath.Join(outs[1], sumsFile))
	if err != nil || !bytes.Equal(first, again) || bytes.Count(first, []byte("\n")) != 2*len(image.Products) {
		t.Errorf("checksums\n%s, then\n%s %v", first, again, err)
	}
}

// TestBillNamesWhatIsInside: the SBOM lists the program's modules with their versions, and for the daemon the package of the C library.
func TestBillNamesWhatIsInside(t *testing.T) {
	o := options{bin: programs(t, 0o755), version: "v1", archs: runtime.GOARCH, out: t.TempDir()}
	if err := o.write(io.Discard); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(o.out, "holdfast-node-"+runtime.GOARCH+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{d.ID: true}
	versions := map[string]string{}
	for _, p := range d.Packages {
		if known[p.ID] {
			t.Errorf("two packages are %s", p.ID)
		}
		known[p.ID], versions[p.Name] = true, p.Version
	}
	for _, r := range d.Relationships {
		if !known[r.From] || !known[r.To] {
			t.Errorf("no package for %+v", r)
		}
	}
	for _, name := range []string{"github.com/google/go-containerregistry", "stdlib", "holdfast-node"} {
		if versions[name] == "" {
			t.Errorf("no version of %s in %v", name, versions)
		}
	}
	if _, err := os.Stat("/var/lib/dpkg/status"); err == nil && versions["libc6"] == "" {
		t.Errorf("no version of libc6 in %v", versions)
	}
}

func TestWrongUse(t *testing.T) {
	for words, want := range map[string]string{
		"":                  "no command was given",
		"images":            "--version is empty: name the images' tag",
		"push --version v1": "--registry is empty: name where to push to",
		"sums":              "no folder was given",
		"images --version v1 --bin /none --archs amd64": "no such file",
	} {
		if err := run(strings.Fields(words), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", words, err, want)
		}
	}
}
