package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/nodehealth/kmsg"
)

const kmsgFlag = "kmsg-fd"

// openAndShed opens the kernel log, for which the pod is privileged, gives up root and every capability and becomes this
// program again: a right is a matter of one thread, so only a fresh program is without it as a whole.
func openAndShed(o options, log *slog.Logger) error {
	runtime.LockOSThread()
	args := os.Args
	if kernel, err := kmsg.Open(o.kmsg, log); err != nil {
		log.Error("there is no kernel log to read", "error", err)
		args = append(args, fmt.Sprintf("--%s=%d", kmsgFlag, noLog))
	} else {
		if _, err := unix.FcntlInt(uintptr(kernel.FD()), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keeping the kernel log open: %w", err)
		}
		args = append(args, fmt.Sprintf("--%s=%d", kmsgFlag, kernel.FD()))
	}
	if err := shed(o.user); err != nil {
		return err
	}
	return fmt.Errorf("starting over: %w", unix.Exec("/proc/self/exe", args, os.Environ()))
}

// noLog is no open file.
const noLog = 1 << 20

// shed makes sure that no program that this thread becomes has any capability, or gets one, or is root unless user is.
func shed(user int) error {
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // there are no more
		} else if errors.Is(err, unix.EPERM) {
			break // without the right to give rights up there are none that matter
		} else if err != nil {
			return fmt.Errorf("giving up capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up ambient capabilities: %w", err)
	}
	if err := become(user); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("refusing new privileges: %w", err)
	}
	none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var empty [2]unix.CapUserData
	if err := unix.Capset(&none, &empty[0]); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	return nil
}

// become gives up root: in a privileged container root writes to the node's disks and to most of its sysctls, capabilities or not.
// Groups but root's stay, for the token may be read by one of them.
func become(user int) error {
	if user == 0 {
		return nil
	}
	groups, err := unix.Getgroups()
	if err != nil {
		return fmt.Errorf("reading the groups: %w", err)
	}
	groups = slices.DeleteFunc(groups, func(g int) bool { return g == 0 })
	if err := errors.Join(unix.Setgroups(groups), unix.Setresgid(user, user, user), unix.Setresuid(user, user, user)); err != nil {
		return fmt.Errorf("becoming user %d: %w", user, err)
	}
	return nil
}
