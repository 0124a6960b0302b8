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

// Indexer starts to build the index with which torch reads the rank files of a manifest in place; files is their common prefix. Its result
// reads as the size of the values file, a newline, that file, and .metadata; a read error explains why there is no index.
type Indexer func(m format.Manifest, files string) (io.ReadCloser, error)

// IndexBy makes f build the index of each step that gets a manifest. failed is called for each step without an index, with the reason.
func (s *Store) IndexBy(f Indexer, failed func(m protocol.Mark, why error)) {
	s.indexer, s.notNamed = f, failed
}

// writeIndex writes the folder with which stock torch reads a step in place, unless it cannot read the step. .metadata is written last: a
// reader that finds it finds all files that it names. The folder's own name is synced with that of the manifest.
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
	err = s.put(path.Join(dir, format.IndexValues), func(out io.Writer) error {
		_, err := io.CopyN(out, read, values)
		return err
	})
	if err != nil {
		return err
	}
	return s.put(path.Join(dir, format.IndexMetadata), func(out io.Writer) error {
		_, err := io.Copy(out, read)
		return err
	})
}

// removeIndex removes an index folder after its .metadata. Foreign files stay in it, and so does the folder.
func (s *Store) removeIndex(dir string) error {
	names, err := s.fs.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR): // a file with Holdfast's name
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
		_ = s.fs.Remove(dir) // succeeds only if it is empty
	}
	return err
}
