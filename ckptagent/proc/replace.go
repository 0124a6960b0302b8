//go:build linux

package proc

import "os"

// Replace replaces a file atomically.
func Replace(path string, content []byte) error {
	part := path + ".new"
	if err := os.WriteFile(part, content, 0o666); err != nil {
		return err
	}
	return os.Rename(part, path)
}
