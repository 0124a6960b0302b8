//go:build linux

package store

import (
	"errors"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FS is the store's interface to a file system, one method per call.
type FS interface {
	MkdirAll(dir string) error
	// Create creates a file, or truncates it.
	Create(name string) (File, error)
	// Open opens a file for reading from an offset.
	Open(name string, at int64) (io.ReadCloser, error)
	Rename(from, to string) error
	Remove(name string) error
	// List returns the names in a folder; for a missing folder an error that is fs.ErrNotExist.
	List(dir string) ([]string, error)
	// SyncDir makes the names in a folder survive a power failure.
	SyncDir(dir string) error
}

// File is a file that is being written. Parts may be written in any order, and several at a time.
type File interface {
	io.WriterAt
	// Sync makes the written data survive a power failure.
	Sync() error
	Close() error
}

// OS is the file system of this machine.
type OS struct{}

// MkdirAll creates a folder that every user of the claim may write to, if umask permits.
func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o777) }

// Create creates a file and opens it for direct I/O, if the file system supports that.
func (OS) Create(name string) (File, error) {
	const flags = os.O_CREATE | os.O_TRUNC | os.O_WRONLY
	f, err := os.OpenFile(name, flags|unix.O_DIRECT, 0o666)
	if refused(err) {
		f, err = os.OpenFile(name, flags, 0o666)
		return osFileOf(f, false, err)
	}
	return osFileOf(f, true, err)
}

// refused reports an error of a file system that does not support direct I/O, at open or at a single write.
func refused(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) }

// Open opens a file for reading from an offset to its end.
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

// Rename replaces a file by another.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty folder.
func (OS) Remove(name string) error { return os.Remove(name) }

// List returns the names in a folder.
func (OS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// SyncDir syncs a folder. Some network file systems cannot sync a folder and return EINVAL or ENOTSUP; they order names by other means.
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

// syncEvery bounds the data of a file that is only in the page cache.
const syncEvery = 64 << 20

// osFile is a file of this machine. Data that is aligned in memory and in the file is written directly: that saves a copy, and page cache
// that would count against the container's memory. The rest goes through the cache, and everything on file systems that refuse direct I/O.
type osFile struct {
	name string

	mu     sync.Mutex // guards the fields, not the writes past the cache
	file   *os.File
	direct bool
	cached int // bytes written through the cache since the last sync
}

func osFileOf(f *os.File, direct bool, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &osFile{name: f.Name(), file: f, direct: direct}, nil
}

// WriteAt writes all of p or returns an error.
func (f *osFile) WriteAt(p []byte, at int64) (n int, err error) {
	if whole := len(p) &^ (block - 1); whole > 0 && at%block == 0 && uintptr(unsafe.Pointer(&p[0]))%block == 0 {
		if file := f.past(); file != nil {
			n, err = file.WriteAt(p[:whole], at)
			if err != nil && !refused(err) && !errors.Is(err, os.ErrClosed) { // another write may have reopened it
				return n, err
			}
		}
	}
	if n == len(p) {
		return n, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.throughCache(); err != nil {
		return n, err
	}
	m, err := f.file.WriteAt(p[n:], at+int64(n))
	if f.cached += m; err == nil && f.cached >= syncEvery {
		err = f.sync()
	}
	return n + m, err
}

// past returns the file for writes past the page cache; nil: there are none any more.
func (f *osFile) past() *os.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.direct {
		return nil
	}
	return f.file
}

// throughCache writes everything from now on through the page cache, by reopening the file: FUSE and network file systems may have passed
// on the flag for direct I/O, and then refuse unaligned writes as long as the file is open.
func (f *osFile) throughCache() error {
	if !f.direct {
		return nil
	}
	again, err := os.OpenFile(f.name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = f.file.Close() // which may return an earlier write's error
	f.file, f.direct = again, false
	return err
}

// Sync also drops the file from the cache: a copy is not read again soon.
func (f *osFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sync()
}

func (f *osFile) sync() error {
	if err := f.file.Sync(); err != nil {
		return err
	}
	f.cached = 0
	_ = unix.Fadvise(int(f.file.Fd()), 0, 0, unix.FADV_DONTNEED) // only a hint
	return nil
}

// Close also returns an error of an earlier write.
func (f *osFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}
