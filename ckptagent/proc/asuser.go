//go:build linux

package proc

import (
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// as has do open, make and remove files with the rights of an identity, where paths are its own to name: links in them lead nowhere that it
// could not go itself. do starts no process. It runs on a thread of its own, which ends with it.
func (i Identity) as(do func() error) error {
	own, err := identityOf(os.Getpid())
	if err != nil || i.sameUser(own) {
		return do()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread() // by the first thread the process is known, and it never ends
			done <- i.as(do)
			return
		}
		err := i.takeFileRights(own)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// takeFileRights has the calling thread use files as an identity does; the kernel takes root's power over files from it.
func (i Identity) takeFileRights(own Identity) error {
	if !slices.Equal(i.Groups, own.Groups) {
		groups := make([]uint32, len(i.Groups)+1) // one more, for an address
		for k, g := range i.Groups {
			groups[k] = uint32(g)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(i.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
			return os.NewSyscallError("setgroups", errno)
		}
	}
	for _, set := range []struct {
		call uintptr
		id   uint32
	}{{unix.SYS_SETFSGID, i.GID}, {unix.SYS_SETFSUID, i.UID}} {
		_, _, _ = unix.RawSyscall(set.call, uintptr(set.id), 0, 0) // which says what was, never whether it failed
		if is, _, _ := unix.RawSyscall(set.call, ^uintptr(0), 0, 0); uint32(is) != set.id {
			return os.NewSyscallError("setfsuid", unix.EPERM)
		}
	}
	return nil
}
