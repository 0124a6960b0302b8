package hang

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// muteSize is the size of each file in a muteFolder.
const muteSize = 1 << 20

// muteFolder is a file system that has a file of each name. Reads of a file are answered only after answer was called with its name.
type muteFolder struct {
	fs.Inode
	// path is where it is mounted.
	path string

	mu    sync.Mutex
	files map[string]*muteFile
}

type muteFile struct {
	fs.Inode
	answered chan struct{}
	once     sync.Once
}

// mount mounts the folder until the test ends.
func mount(t *testing.T) *muteFolder {
	t.Helper()
	m := &muteFolder{files: map[string]*muteFile{}}
	m.path = serve(t, "mute", m)
	t.Cleanup(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, f := range m.files {
			f.answer()
		}
	})
	return m
}

// serve mounts a file system until the test ends, and returns where. Cluster nodes that start later have it there, too; they have a /tmp of
// their own.
func serve(t *testing.T, name string, root fs.InodeEmbedder) string {
	t.Helper()
	path, err := os.MkdirTemp("/mnt", "holdfast-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	options := fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: name, Name: name}
	server, err := fs.Mount(path, root, &fs.Options{MountOptions: options})
	if err != nil {
		t.Fatalf("mounting a folder through /dev/fuse: %v", err)
	}
	t.Cleanup(func() {
		for range 50 {
			if server.Unmount() == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		_ = unix.Unmount(path, unix.MNT_DETACH)
	})
	return path
}

// file returns the file of that name.
func (m *muteFolder) file(name string) *muteFile {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[name] == nil {
		m.files[name] = &muteFile{answered: make(chan struct{})}
	}
	return m.files[name]
}

// answer answers all reads of a file from now on.
func (m *muteFolder) answer(name string) { m.file(name).answer() }

func (f *muteFile) answer() { f.once.Do(func() { close(f.answered) }) }

func (m *muteFolder) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	f := m.file(name)
	out.Mode, out.Size = fuse.S_IFREG|0o444, muteSize
	if in := m.GetChild(name); in != nil {
		return in, fs.OK
	}
	return m.NewInode(ctx, f, fs.StableAttr{Mode: fuse.S_IFREG}), fs.OK
}

func (f *muteFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = fuse.S_IFREG|0o444, muteSize
	return fs.OK
}

func (f *muteFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, 0, fs.OK
}

func (f *muteFile) Read(_ context.Context, _ fs.FileHandle, into []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	<-f.answered
	clear(into)
	return fuse.ReadResultData(into), fs.OK
}
