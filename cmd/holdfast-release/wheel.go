package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"holdfast.dev/holdfast/ckptagent/python"
)

// wheelPlatforms are pip's names of platforms by Go's name of the processor. The programs are static, so any Linux runs them.
var wheelPlatforms = map[string]string{
	"amd64": "manylinux2014_x86_64.musllinux_1_1_x86_64",
	"arm64": "manylinux2014_aarch64.musllinux_1_1_aarch64",
	"any":   "any",
}

// wheelPrograms are what a wheel of one platform installs beside the package.
var wheelPrograms = []string{"holdfast", "holdfast-agent"}

// wheels writes the Python package: one wheel with `holdfast run` for each processor, and one without for other systems' editors.
func (o options) wheels(out io.Writer) error {
	version, err := pythonVersion(o.version)
	if err != nil {
		return err
	}
	for _, arch := range append(strings.Split(o.archs, ","), "any") {
		platform, ok := wheelPlatforms[arch]
		if !ok {
			return fmt.Errorf("--archs %s: there are wheels for amd64 and arm64", arch)
		}
		content, err := wheel(version, platform, o.bin, arch)
		if err != nil {
			return fmt.Errorf("the wheel for %s: %w", arch, err)
		}
		at := filepath.Join(o.out, "holdfast-"+version+"-py3-none-"+platform+".whl")
		if err := errors.Join(os.MkdirAll(o.out, 0o755), os.WriteFile(at, content, 0o644)); err != nil {
			return err
		}
		fmt.Fprintln(out, at)
	}
	return nil
}

var versions = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(-dev|-rc\.(\d+))?$`)

// pythonVersion writes a version as Python's packages do.
func pythonVersion(version string) (string, error) {
	m := versions.FindStringSubmatch(version)
	switch {
	case m == nil:
		return "", fmt.Errorf("--version %q: Python's packages need one such as v0.1.0, v0.1.0-dev or v0.1.0-rc.1", version)
	case m[2] == "-dev":
		return m[1] + ".dev0", nil
	case m[3] != "":
		return m[1] + "rc" + m[3], nil
	}
	return m[1], nil
}

const wheelMetadata = `Metadata-Version: 2.4
Name: holdfast
Version: %s
Summary: Keeps the state of training processes in memory that outlives them, and restarts ranks in place
License-Expression: Apache-2.0
Requires-Python: >=3.10
Description-Content-Type: text/markdown

The client of [Holdfast](https://holdfast.dev) for training scripts: the files that Holdfast puts into pods of training
jobs. Without Holdfast every call does nothing. On Linux the package also installs "holdfast run", which takes the place
of torchrun on one machine.
`

// wheel returns a wheel: the package as it is injected into pods, and the programs of a processor. The same files give the same bytes.
func wheel(version, platform, bin, arch string) ([]byte, error) {
	var out bytes.Buffer
	w := &record{zip: zip.NewWriter(&out), info: "holdfast-" + version + ".dist-info/"}
	err := fs.WalkDir(python.Files, "holdfast", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := python.Files.ReadFile(path)
		return errors.Join(err, w.add(path, 0o644, content))
	})
	if err != nil {
		return nil, err
	}
	tags := ""
	for p := range strings.SplitSeq(platform, ".") {
		tags += "Tag: py3-none-" + p + "\n"
	}
	err = errors.Join(
		w.add("holdfast/py.typed", 0o644, nil),
		w.add(w.info+"METADATA", 0o644, fmt.Appendf(nil, wheelMetadata, version)),
		w.add(w.info+"WHEEL", 0o644, fmt.Appendf(nil, "Wheel-Version: 1.0\nGenerator: holdfast-release\nRoot-Is-Purelib: %v\n%s", arch == "any", tags)))
	if arch != "any" {
		for _, name := range wheelPrograms {
			content, readErr := os.ReadFile(filepath.Join(bin, arch, name))
			err = errors.Join(err, readErr, w.add("holdfast-"+version+".data/scripts/"+name, 0o755, content))
		}
	}
	if err := errors.Join(err, w.end()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// record writes files into a zip and keeps the list of them that a wheel must have.
type record struct {
	zip   *zip.Writer
	info  string
	lines strings.Builder
}

func (r *record) add(path string, mode fs.FileMode, content []byte) error {
	sum := sha256.Sum256(content)
	fmt.Fprintf(&r.lines, "%s,sha256=%s,%d\n", path, base64.RawURLEncoding.EncodeToString(sum[:]), len(content))
	return r.write(path, mode, content)
}

func (r *record) write(path string, mode fs.FileMode, content []byte) error {
	h := &zip.FileHeader{Name: path, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
	h.SetMode(mode)
	f, err := r.zip.CreateHeader(h)
	if err == nil {
		_, err = f.Write(content)
	}
	return err
}

func (r *record) end() error {
	lines := r.lines.String() + r.info + "RECORD,,\n"
	return errors.Join(r.write(r.info+"RECORD", 0o644, []byte(lines)), r.zip.Close())
}
