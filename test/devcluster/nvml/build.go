// Package nvml simulates the NVIDIA driver of a node. The package builds a library from C with the machine's compiler;
// holdfast-nvml loads that library in place of NVIDIA's. A server of the package gives the library the state of the
// node's GPUs. A test or a user can make a GPU fail in NVML, in the kernel log and in the device plugin at once.
package nvml

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

//go:embed library/nvml.c
var source []byte

// Library is the file name of the library.
const Library = "libnvidia-ml.so.1"

// ErrNoCompiler: the library cannot be built here.
var ErrNoCompiler = errors.New("gcc is not installed, so nodes have no pretended NVIDIA driver")

// Dir is the library's folder in a node: where a driver container puts the real one.
func Dir() string {
	triplet := "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		triplet = "aarch64-linux-gnu"
	}
	return "/run/nvidia/driver/usr/lib/" + triplet
}

// Build writes the library to path.
func Build(path string) error {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return ErrNoCompiler
	}
	dir, err := os.MkdirTemp("", "holdfast-nvml-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := filepath.Join(dir, "nvml.c")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		return err
	}
	out, err := exec.Command(gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, c, "-ldl", "-lpthread").CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the stand-in for %s: %w: %s", Library, err, out)
	}
	return nil
}
