//go:build linux

package store

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/stock"
	"holdfast.dev/holdfast/internal/protocol"
)

// TellNotNamed has f told of each step that stock torch cannot read in place, and why.
func (s *Store) TellNotNamed(f func(m protocol.Mark, why error)) { s.notNamed = f }

// IndexBy has f do what WriteIndex does.
func (s *Store) IndexBy(f func(m format.Manifest) error) { s.writeIndex = f }

// WriteIndex writes the folder by which stock torch reads a step where it lies; a step that it cannot read gets none. .metadata comes last:
// who finds it finds all that it names. The folder's own name is synced with that of the manifest.
func (s *Store) WriteIndex(m format.Manifest) error {
	dir := path.Join(s.folder(m.Generation), format.IndexFolder(m.Step))
	x, err := s.index(m)
	if err != nil {
		return err
	}
	if err = s.fs.MkdirAll(dir); err != nil {
		return err
	}
	err = s.put(path.Join(dir, format.IndexValues), func(out File) error {
		_, err := out.Write(x.Values())
		return err
	})
	if err != nil {
		return err
	}
	return s.put(path.Join(dir, format.IndexMetadata), func(out File) error {
		return x.WriteMetadata(out, filesOf(m.Step))
	})
}

// filesOf are those of a step, as they are called in that folder.
func filesOf(step int64) stock.Files {
	return stock.Files{
		Values: format.IndexValues, Data: format.RankFileData,
		Rank: func(rank int) string { return "../" + format.RankFileName(step, uint32(rank)) },
	}
}

func (s *Store) index(m format.Manifest) (*stock.Index, error) {
	x := stock.New()
	for rank, r := range m.Ranks {
		data := dataOf{s.fs, path.Join(s.folder(m.Generation), format.RankFileName(m.Step, uint32(rank)))}
		if err := x.Add(data, int64(r.Length)); err != nil {
			return nil, err
		}
	}
	return x, x.Check()
}

// dataOf is the data of a rank's file. It is open only while it is read: there may be thousands.
type dataOf struct {
	fs   FS
	name string
}

// ReadAt reads all of b, or says why not.
func (d dataOf) ReadAt(b []byte, at int64) (int, error) {
	in, err := d.fs.Open(d.name, format.RankFileData+at)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	return io.ReadFull(in, b)
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
		part := strings.HasSuffix(name, format.PartSuffix) && (strings.HasPrefix(name, format.IndexValues+".") || strings.HasPrefix(name, format.IndexMetadata+"."))
		if whole || part {
			err = errors.Join(err, s.remove(path.Join(dir, name)))
		}
	}
	if err == nil {
		_ = s.fs.Remove(dir) // only an empty one goes
	}
	return err
}
