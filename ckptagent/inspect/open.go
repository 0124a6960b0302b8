package inspect

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// open opens a file that is one: no link, pipe or folder, whatever takes its place meanwhile. Where it cannot, in is nil
// and status says how the file is.
func open(dir *os.Root, name string) (in *os.File, info fs.FileInfo, status Status, why string) {
	before, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, Missing, ""
	case err != nil:
		return nil, nil, Unreadable, reason(err)
	case !before.Mode().IsRegular():
		return nil, nil, Unreadable, "no regular file (" + before.Mode().Type().String() + "), and not followed"
	}
	in, err = dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // to open a pipe would wait for its writer
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, Missing, ""
	case err != nil:
		return nil, nil, Unreadable, reason(err)
	}
	info, err = in.Stat()
	if err != nil || !os.SameFile(before, info) {
		in.Close()
		return nil, nil, Unreadable, "it changed while it was looked at"
	}
	return in, info, OK, ""
}

// reason is what went wrong, without the name that stands beside it.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// rankOf reads the rank of a name that is known to be a rank file's.
func rankOf(name string) uint32 {
	_, digits, _ := strings.Cut(name, ".rank-")
	rank, _ := strconv.ParseUint(digits, 10, 32)
	return uint32(rank)
}
