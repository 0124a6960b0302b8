package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const sumsFile = "SHA256SUMS"

// sums writes the checksums of all files below dir, in the format of sha256sum, sorted by path.
func sums(dir string) error {
	if dir == "" {
		return errors.New("no folder was given: write holdfast-release sums FOLDER")
	}
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(dir, path)
		if err = errors.Join(err, relErr); err != nil || !d.Type().IsRegular() || rel == sumsFile {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), rel)
		return err
	})
	if err != nil {
		return fmt.Errorf("checksums of %s: %w", dir, err)
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(b.String()), 0o644)
}
