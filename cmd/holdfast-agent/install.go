//go:build linux

package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/python"
)

// shims are the names of launchers that the binary replaces.
var shims = []string{"torchrun"}

// install writes the folder for a container that may run as any user.
func install(dir string) error {
	syscall.Umask(0)
	root := proc.Root(dir)
	for _, d := range []string{filepath.Dir(root.Binary()), root.Shims(), root.Python()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("laying out %s: %w", dir, err)
		}
	}
	if err := os.MkdirAll(root.Run(), 0o777); err != nil {
		return fmt.Errorf("laying out %s: %w", dir, err)
	}
	if err := copySelf(root.Binary()); err != nil {
		return fmt.Errorf("installing the agent: %w", err)
	}
	for _, name := range shims {
		link := filepath.Join(root.Shims(), name)
		_ = os.Remove(link)
		if err := os.Symlink(filepath.Join("..", "bin", filepath.Base(root.Binary())), link); err != nil {
			return fmt.Errorf("installing the shim %s: %w", name, err)
		}
	}
	return fs.WalkDir(python.Files, ".", func(path string, d fs.DirEntry, err error) error {
		to := filepath.Join(root.Python(), path)
		if err != nil || d.IsDir() {
			// Python keeps compiled modules here. Without that each start of a rank compiles all of them.
			return firstOf(err, os.MkdirAll(to, 0o755), os.MkdirAll(filepath.Join(to, "__pycache__"), 0o777))
		}
		content, err := python.Files.ReadFile(path)
		if err == nil {
			err = os.WriteFile(to, content, 0o644)
		}
		if err != nil {
			return fmt.Errorf("installing %s: %w", path, err)
		}
		return nil
	})
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// copySelf copies this binary; the rename lets it replace a running one.
func copySelf(to string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	part := to + ".new"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err := firstOf(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(part, to)
}
