//go:build linux

package store

import (
	"errors"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FS is the store's interface to a file system, one method per call.
type FS interface {
	MkdirAll(dir string) error
	// Create creates a file, or empties it.
	Create(name string) (File, error)
	// Open opens a file for reading, from a place in it on.
	Open(name string, at int64) (io.ReadCloser, error)
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

// Create makes a file that is written past the page cache, where the file system can.
func (OS) Create(name string) (File, error) {
	const flags = os.O_CREATE | os.O_TRUNC | os.O_WRONLY
	f, err := os.OpenFile(name, flags|unix.O_DIRECT, 0o666)
	if refused(err) {
		f, err = os.OpenFile(name, flags, 0o666)
		return osFileOf(f, false, err)
	}
	return osFileOf(f, true, err)
}

// refused is what file systems say that cannot write past the page cache, be it of the file or of one write only.
func refused(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) }

// Open opens a file for reading from a place in it to its end.
func (OS) Open(name string, at int64) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
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

// syncEvery bounds what of a file lies in the page cache only.
const syncEvery = 64 << 20

// osFile is a file of this machine. Past the page cache goes what lies aligned in memory and in the file: it is not copied once more, and
// takes no memory of the container, which is the training's. The rest, and all on file systems that refuse, goes through the cache.
type osFile struct {
	*os.File
	direct bool
	cached int // bytes written through the cache since the last sync
}

func osFileOf(f *os.File, direct bool, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &osFile{File: f, direct: direct}, nil
}

// Write writes all of p or says why not.
func (f *osFile) Write(p []byte) (n int, err error) {
	if f.direct {
		whole := len(p) &^ (block - 1)
		if whole > 0 && uintptr(unsafe.Pointer(&p[0]))%block == 0 {
			if n, err = f.File.Write(p[:whole]); err != nil && !refused(err) {
				return n, err
			}
		}
		if n == len(p) {
			return n, nil
		}
		if err := f.throughCache(); err != nil {
			return n, err
		}
	}
	m, err := f.File.Write(p[n:])
	if f.cached += m; err == nil && f.cached >= syncEvery {
		err = f.Sync()
	}
	return n + m, err
}

// throughCache has all that is written from now on go through the page cache, by a file that is opened anew: file systems that are a
// process, or another machine, may have passed on how this one was opened, and so refuse what is not aligned as long as it is open.
func (f *osFile) throughCache() error {
	at, err := f.File.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	again, err := os.OpenFile(f.Name(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = again.Seek(at, io.SeekStart); err == nil {
		err = f.File.Close() // which may be when what was written is refused
		f.File, f.direct = again, false
		return err
	}
	return errors.Join(err, again.Close())
}

// Sync also lets the cache go: what was copied is not read again soon.
func (f *osFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	f.cached = 0
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // only a hint
	return nil
}
