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

// openAndShed opens the kernel log, for which the pod is privileged, drops root and all capabilities, and executes this program again:
// rights belong to single threads, so only a new program lacks them in all threads.
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

// noLog is a number of no open file.
const noLog = 1 << 20

// shed makes sure that any program that this thread executes has no capability, gains none, and is not root unless user is.
func shed(user int) error {
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // there are no further capabilities
		} else if errors.Is(err, unix.EPERM) {
			break // without the right to drop capabilities there are none that matter
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

// become drops root: in a privileged container root can write to the node's disks and to most sysctls, even without capabilities. Groups
// except root's stay, as one of them may be needed to read the token.
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
