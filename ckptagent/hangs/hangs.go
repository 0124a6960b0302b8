//go:build linux

// Package hangs keeps the files of a pod about ranks that stood still, for users: a folder for each time, named after
// the generation and the number of the look. A folder with its final name is complete. The newest Most folders stay,
// with at most Bytes in all.
package hangs

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// Most is how many hangs are kept, in a pod and in a job's folder of storage.
	Most = 3
	// Bytes is the most bytes of all files of a pod.
	Bytes = 64 << 20
)

// Folder is the folder of a pod's hangs.
type Folder string

// Hang names one hang: the generation that stood still, and the look whose verdict was reported.
type Hang struct{ Generation, Look int64 }

// String returns the name of the hang's folder.
func (h Hang) String() string { return fmt.Sprintf("%d-%d", h.Generation, h.Look) }

// Parse returns the hang of a folder's name.
func Parse(name string) (h Hang, ok bool) {
	generation, look, _ := strings.Cut(name, "-")
	var errs [2]error
	h.Generation, errs[0] = strconv.ParseInt(generation, 10, 64)
	h.Look, errs[1] = strconv.ParseInt(look, 10, 64)
	return h, errs[0] == nil && errs[1] == nil && h.String() == name
}

// Sort returns the hangs among names, oldest first.
func Sort(names []string) []Hang {
	var all []Hang
	for _, name := range names {
		if h, ok := Parse(name); ok {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Hang) int {
		return cmp.Or(cmp.Compare(a.Look, b.Look), cmp.Compare(a.Generation, b.Generation))
	})
	return all
}

// BytesPerRank returns the most bytes of one hang's files of one rank.
func BytesPerRank(ranks int) int64 { return Bytes / int64(Most*max(ranks, 1)) }

// Path returns the folder of a hang.
func (f Folder) Path(h Hang) string { return filepath.Join(string(f), h.String()) }

// Keep has a hang's files written into an empty folder, which gets its final name then; if that exists, nothing is written. It removes what
// a killed agent has left, and the oldest hangs.
func (f Folder) Keep(h Hang, fill func(dir string) error) error {
	if _, err := os.Stat(f.Path(h)); err == nil {
		return nil
	}
	all, err := f.clear()
	if err != nil {
		return err
	}
	for _, old := range all[:max(0, len(all)-Most+1)] {
		if err := os.RemoveAll(f.Path(old)); err != nil {
			return err
		}
	}
	part := f.Path(h) + ".new"
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	if err := fill(part); err != nil {
		return err
	}
	return os.Rename(part, f.Path(h))
}

// clear removes whatever has no final name, and returns the hangs, oldest first.
func (f Folder) clear() ([]Hang, error) {
	if err := os.MkdirAll(string(f), 0o755); err != nil {
		return nil, err
	}
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := Parse(name); ok {
			continue
		}
		if err := os.RemoveAll(filepath.Join(string(f), name)); err != nil {
			return nil, err
		}
	}
	return Sort(names), nil
}

// List returns the hangs that are kept, oldest first.
func (f Folder) List() []Hang {
	names, err := f.names()
	if err != nil {
		return nil
	}
	return Sort(names)
}

func (f Folder) names() (names []string, err error) {
	entries, err := os.ReadDir(string(f))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
