//go:build linux

package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/internal/eventually"
)

// fault is the fault of one kind of operation.
type fault struct {
	// op is the affected operation: write, fsync, fsyncdir, rename, create or mkdir.
	op string
	// err is the error that each affected operation returns.
	err syscall.Errno
	// hangs: no affected operation returns before the fault is lifted, even if its caller is killed.
	hangs bool
	// slower: each affected operation takes that many times as long as usual.
	slower int
}

// faultyFolder passes operations on to a folder of the machine, except those with a fault.
type faultyFolder struct {
	// backing is the folder on disk; mount is the path where operations meet the faults.
	backing, mount string

	mu     sync.Mutex
	now    *fault
	lifted chan struct{} // closed when the present fault ends
	met    int           // number of affected operations
}

// newFaultyFolder mounts a faulty folder until the test ends.
func newFaultyFolder(t *testing.T) *faultyFolder {
	t.Helper()
	dir := t.TempDir()
	f := &faultyFolder{backing: filepath.Join(dir, "backing"), mount: filepath.Join(dir, "claim")}
	for _, d := range []string{f.backing, f.mount} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := fs.NewLoopbackRoot(f.backing)
	if err != nil {
		t.Fatal(err)
	}
	none := time.Duration(0)
	server, err := fs.Mount(f.mount, &faultyNode{LoopbackNode: root.(*fs.LoopbackNode), folder: f}, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "faulty", Name: "faulty", MaxBackground: 64},
		EntryTimeout: &none, AttrTimeout: &none,
	})
	if err != nil {
		t.Fatalf("mounting a folder through /dev/fuse: %v", err)
	}
	t.Cleanup(func() {
		f.lift()
		for range 50 {
			if server.Unmount() == nil {
				return
			}
			time.Sleep(100 * time.Millisecond) // delayed operations are finishing
		}
		_ = unix.Unmount(f.mount, unix.MNT_DETACH)
		t.Errorf("%s is still in use", f.mount)
	})
	return f
}

// begin begins a fault.
func (f *faultyFolder) begin(what fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.lifted, f.met = &what, make(chan struct{}), 0
}

// lift ends the fault. Operations that hang continue.
func (f *faultyFolder) lift() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now != nil {
		close(f.lifted)
		f.now = nil
	}
}

// awaitMet waits until the fault has affected an operation.
func (f *faultyFolder) awaitMet(t *testing.T) {
	t.Helper()
	eventually.Holds(t, "an operation that meets the fault", func() (bool, any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.met > 0, f.met
	})
}

// befall carries out one operation with the present fault.
func (f *faultyFolder) befall(op string, do func() syscall.Errno) syscall.Errno {
	f.mu.Lock()
	now, lifted := f.now, f.lifted
	if now == nil || now.op != op {
		f.mu.Unlock()
		return do()
	}
	f.met++
	f.mu.Unlock()
	switch {
	case now.hangs:
		<-lifted
		return do()
	case now.slower > 0:
		began := time.Now()
		err := do()
		time.Sleep(time.Since(began) * time.Duration(now.slower-1))
		return err
	}
	return now.err
}

type faultyNode struct {
	*fs.LoopbackNode
	folder *faultyFolder
}

func (n *faultyNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &faultyNode{LoopbackNode: ops.(*fs.LoopbackNode), folder: n.folder}
}

func (n *faultyNode) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (made *fs.Inode, errno syscall.Errno) {
	errno = n.folder.befall("mkdir", func() (errno syscall.Errno) { made, errno = n.LoopbackNode.Mkdir(ctx, name, mode, out); return errno })
	return made, errno
}

func (n *faultyNode) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	return n.folder.befall("rename", func() syscall.Errno { return n.LoopbackNode.Rename(ctx, name, to, newName, flags) })
}

func (n *faultyNode) Create(
	ctx context.Context,
	name string,
	flags, mode uint32,
	out *fuse.EntryOut,
) (made *fs.Inode, fh fs.FileHandle, how uint32, errno syscall.Errno) {
	errno = n.folder.befall("create", func() (errno syscall.Errno) {
		made, fh, how, errno = n.LoopbackNode.Create(ctx, name, flags, mode, out)
		return errno
	})
	return made, n.wrap(fh), how, errno
}

func (n *faultyNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fh, how, errno := n.LoopbackNode.Open(ctx, flags)
	return n.wrap(fh), how, errno
}

func (n *faultyNode) wrap(fh fs.FileHandle) fs.FileHandle {
	if file, ok := fh.(*fs.LoopbackFile); ok {
		return faultyFile{file, n.folder}
	}
	return fh
}

func (n *faultyNode) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fh, how, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if stream, ok := fh.(dirStream); ok {
		fh = faultyDir{stream, n.folder}
	}
	return fh, how, errno
}

type faultyFile struct {
	*fs.LoopbackFile
	folder *faultyFolder
}

// PassthroughFd keeps the kernel from bypassing this file system.
func (faultyFile) PassthroughFd() (int, bool) { return 0, false }

func (f faultyFile) Write(ctx context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	errno = f.folder.befall("write", func() (errno syscall.Errno) { n, errno = f.LoopbackFile.Write(ctx, data, off); return errno })
	return n, errno
}

func (f faultyFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	return f.folder.befall("fsync", func() syscall.Errno { return f.LoopbackFile.Fsync(ctx, flags) })
}

// dirStream is the interface of an open folder.
type dirStream interface {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
	fs.FileFsyncdirer
}

type faultyDir struct {
	dirStream
	folder *faultyFolder
}

func (d faultyDir) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return d.folder.befall("fsyncdir", func() syscall.Errno { return d.dirStream.Fsyncdir(ctx, flags) })
}
