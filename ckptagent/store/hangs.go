//go:build linux

package store

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/hangs"
)

// HangFolder is the folder of one hang's files.
func (s *Store) HangFolder(h hangs.Hang) string {
	return path.Join(s.dir, format.HangsFolder, h.String())
}

// PutHang writes one of the files about ranks that stood still.
func (s *Store) PutHang(h hangs.Hang, name string, data io.Reader) error {
	if err := s.makeFolder(s.HangFolder(h)); err != nil {
		return err
	}
	return s.put(path.Join(s.HangFolder(h), name), func(out io.Writer) error {
		_, err := io.Copy(out, data)
		return err
	})
}

// PruneHangs removes all hangs of the job but the newest ones.
func (s *Store) PruneHangs() error {
	names, err := s.fs.List(path.Join(s.dir, format.HangsFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	all := hangs.Sort(names)
	for _, h := range slices.Backward(all[:max(0, len(all)-hangs.Most)]) {
		files, more := s.fs.List(s.HangFolder(h))
		err = errors.Join(err, more)
		for _, name := range files {
			err = errors.Join(err, s.remove(path.Join(s.HangFolder(h), name)))
		}
		err = errors.Join(err, s.remove(s.HangFolder(h)))
	}
	return err
}
