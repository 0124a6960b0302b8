//go:build linux

package store

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// FS is the seam under the store: what it asks of a file system, one call each.
type FS interface {
	MkdirAll(dir string) error
	// Create makes a file anew, or empties it.
	Create(name string) (File, error)
	Open(name string) (io.ReadCloser, error)
	Rename(from, to string) error
	Remove(name string) error
	// List names what lies in a folder; a folder that is not there is an error of kind fs.ErrNotExist.
	List(dir string) ([]string, error)
	// SyncDir makes the names in a folder outlive a loss of power.
	SyncDir(dir string) error
}

// File is a file that is being written.
type File interface {
	io.Writer
	// Sync makes what was written outlive a loss of power.
	Sync() error
	Close() error
}

// OS is the file system of this machine.
type OS struct{}

// MkdirAll makes a folder that every user of the claim may write into, as far as umask lets it.
func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o777) }

// Create makes a file.
func (OS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open opens a file for reading from its start to its end.
func (OS) Open(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) // only a hint
	return f, nil
}

// Rename moves a file over another.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty folder.
func (OS) Remove(name string) error { return os.Remove(name) }

// List names what lies in a folder.
func (OS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// SyncDir syncs a folder. File systems that cannot sync one by itself (some network ones) keep names in
// order by other means and say EINVAL or ENOTSUP.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

type osFile struct{ *os.File }

// Sync also lets the cache go: what was copied is not read again soon, and the container's memory is the
// training's.
func (f osFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // only a hint
	return nil
}
