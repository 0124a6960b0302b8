package hang

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// slowRate is how many bytes a second slow storage takes of each file.
const slowRate = 64 << 10

// slowFile is a file of slow storage: each write waits.
type slowFile struct{ *fs.LoopbackFile }

func (f slowFile) Write(ctx context.Context, data []byte, at int64) (uint32, syscall.Errno) {
	time.Sleep(time.Duration(len(data)) * time.Second / slowRate)
	return f.LoopbackFile.Write(ctx, data, at)
}

// PassthroughFd returns none, so that no write passes by Write.
func (slowFile) PassthroughFd() (int, bool) { return 0, false }

// slowNode is a file or folder of slow storage.
type slowNode struct{ fs.LoopbackNode }

func (n *slowNode) Create(
	ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, file, more, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, slowly(file), more, errno
}

func (n *slowNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	file, more, errno := n.LoopbackNode.Open(ctx, flags)
	return slowly(file), more, errno
}

func slowly(file fs.FileHandle) fs.FileHandle {
	if f, ok := file.(*fs.LoopbackFile); ok {
		return slowFile{f}
	}
	return file
}

// mountSlow mounts slow storage until the test ends, and returns where. All users may write to it.
func mountSlow(t *testing.T) string {
	t.Helper()
	below := t.TempDir()
	if err := os.Chmod(below, 0o777); err != nil {
		t.Fatal(err)
	}
	data := &fs.LoopbackRoot{Path: below, NewNode: func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &slowNode{fs.LoopbackNode{RootData: data}}
	}}
	root := &slowNode{fs.LoopbackNode{RootData: data}}
	data.RootNode = root
	return serve(t, "slow", root)
}
