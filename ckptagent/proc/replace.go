//go:build linux

package proc

import "os"

// Replace writes a file completely or not at all.
func Replace(path string, content []byte) error {
	part := path + ".new"
	if err := os.WriteFile(part, content, 0o666); err != nil {
		return err
	}
	return os.Rename(part, path)
}
