package inspect

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// open opens a regular file: no link, pipe or folder, even if the file is replaced meanwhile. On failure in is nil and status has the
// cause.
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
	in, err = dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: opening a pipe must not wait for its writer
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

// reason returns an error's text without the file name, which is shown beside it.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// rankOf returns the rank in the name of a rank file.
func rankOf(name string) uint32 {
	_, digits, _ := strings.Cut(name, ".rank-")
	rank, _ := strconv.ParseUint(digits, 10, 32)
	return uint32(rank)
}
