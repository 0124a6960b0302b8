//go:build linux

package proc

import (
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// as runs do with an identity's rights on files. The identity may choose the paths: their links lead nowhere that it could not go itself.
// do must not start a process. It runs on its own thread, which ends afterwards.
func (i Identity) as(do func() error) error {
	own, err := identityOf(os.Getpid())
	if err != nil || i.sameUser(own) {
		return do()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread() // the main thread never ends, so it must not be used
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

// takeFileRights gives the calling thread an identity's rights on files; the kernel then removes root's.
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
		_, _, _ = unix.RawSyscall(set.call, uintptr(set.id), 0, 0) // it returns the former ID and no error
		if is, _, _ := unix.RawSyscall(set.call, ^uintptr(0), 0, 0); uint32(is) != set.id {
			return os.NewSyscallError("setfsuid", unix.EPERM)
		}
	}
	return nil
}
