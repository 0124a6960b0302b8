//go:build linux

package proc

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// protect makes what this process and the agent run, read and trust unwritable for other users of the container, if they run as root:
// volumes are mounted writable for all. Without root it does nothing: then only root can start processes of other users.
func (r Root) protect() error {
	_ = os.Chmod(r.Ranks(), 0o777|fs.ModeSticky) // until the ranks' user is known
	if os.Geteuid() != 0 {
		return nil
	}
	for _, dir := range []string{string(r), r.Run(), r.Memory()} {
		if err := ownFolder(dir); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	for _, tree := range []string{filepath.Dir(r.Binary()), r.Shims(), r.Python()} {
		err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "__pycache__" { // any user may have written here
				return cmp.Or(errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o755)), fs.SkipDir)
			}
			if err == nil && d.IsDir() {
				return ownFolder(path)
			}
			if err == nil {
				err = os.Lchown(path, 0, 0)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func ownFolder(dir string) error {
	err := os.Chown(dir, 0, 0)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	return err
}
