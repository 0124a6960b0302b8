//go:build linux

package store

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/internal/protocol"
)

// Indexer starts to build the index with which torch reads the rank files of a manifest in place; name is their common prefix. What
// it returns reads as the number of bytes of the file of values, a newline, these bytes, and .metadata; the error says why the step
// cannot be named.
type Indexer func(m format.Manifest, files string) (io.ReadCloser, error)

// IndexBy has f name each step that gets a manifest. failed is called for each that has no index, with the reason.
func (s *Store) IndexBy(f Indexer, failed func(m protocol.Mark, why error)) {
	s.indexer, s.notNamed = f, failed
}

// writeIndex writes the folder by which stock torch reads a step where it lies; a step that it cannot read gets none. .metadata comes last:
// who finds it finds all that it names. The folder's own name is synced with that of the manifest.
func (s *Store) writeIndex(m format.Manifest) error {
	in, err := s.indexer(m, path.Join(s.folder(m.Generation), strings.TrimSuffix(format.RankFileName(m.Step, 0), "0")))
	if err != nil {
		return err
	}
	defer in.Close()
	read := bufio.NewReaderSize(in, 64<<10)
	line, err := read.ReadSlice('\n')
	if err != nil {
		return err
	}
	values, err := strconv.ParseInt(strings.TrimSuffix(string(line), "\n"), 10, 64)
	if err != nil {
		return err
	}
	dir := path.Join(s.folder(m.Generation), format.IndexFolder(m.Step))
	if err = s.fs.MkdirAll(dir); err != nil {
		return err
	}
	err = s.put(path.Join(dir, format.IndexValues), func(out File) error {
		_, err := io.CopyN(struct{ io.Writer }{out}, read, values)
		return err
	})
	if err != nil {
		return err
	}
	return s.put(path.Join(dir, format.IndexMetadata), func(out File) error {
		_, err := io.Copy(struct{ io.Writer }{out}, read) // by Write alone, which knows what a direct file takes
		return err
	})
}

// removeIndex removes such a folder, whose .metadata is gone. What is not ours stays in it, and keeps it.
func (s *Store) removeIndex(dir string) error {
	names, err := s.fs.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR): // a file of our naming
		return s.remove(dir)
	}
	for _, name := range names {
		whole := name == format.IndexValues || name == format.IndexMetadata
		part := strings.HasSuffix(name, format.PartSuffix) &&
			(strings.HasPrefix(name, format.IndexValues+".") || strings.HasPrefix(name, format.IndexMetadata+"."))
		if whole || part {
			err = errors.Join(err, s.remove(path.Join(dir, name)))
		}
	}
	if err == nil {
		_ = s.fs.Remove(dir) // only an empty one goes
	}
	return err
}
