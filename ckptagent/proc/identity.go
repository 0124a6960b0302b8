//go:build linux

package proc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Identity is the user and the scheduling of a process. A launcher's comes from the kernel, never from the launcher itself: an agent that
// runs as root starts ranks with it.
type Identity struct {
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Groups []int  `json:"groups,omitempty"`
	// NoNewPrivs, Bounding, Inheritable and Ambient are the privileges that a child keeps; the others follow from its user.
	NoNewPrivs  bool   `json:"noNewPrivs,omitempty"`
	Bounding    uint64 `json:"bounding,omitempty"`
	Inheritable uint64 `json:"inheritable,omitempty"`
	Ambient     uint64 `json:"ambient,omitempty"`
	// Policy and Priority are of CPU scheduling, Nice and IO of CPU and disk priority.
	Policy   uint32 `json:"policy,omitempty"`
	Priority uint32 `json:"priority,omitempty"`
	Nice     int    `json:"nice,omitempty"`
	IO       int    `json:"io,omitempty"`
}

// identityOf reads a process's identity from the kernel.
func identityOf(pid int) (Identity, error) {
	var id Identity
	who := strconv.Itoa(pid)
	users, groups := numbers(statusField(who, "Uid")), numbers(statusField(who, "Gid"))
	if len(users) != 4 || len(groups) != 4 {
		return id, fmt.Errorf("reading the user of process %d: %w", pid, os.ErrNotExist)
	}
	differ := func(of []int) bool { return slices.ContainsFunc(of, func(n int) bool { return n != of[0] }) }
	if differ(users) || differ(groups) {
		return id, fmt.Errorf("process %d runs as several users at once: real, effective, saved and of files %v, groups %v", pid, users, groups)
	}
	id.UID, id.GID, id.Groups = uint32(users[0]), uint32(groups[0]), numbers(statusField(who, "Groups"))
	slices.Sort(id.Groups)
	id.NoNewPrivs = statusField(who, "NoNewPrivs") == "1"
	for name, set := range map[string]*uint64{"CapBnd": &id.Bounding, "CapInh": &id.Inheritable, "CapAmb": &id.Ambient} {
		*set = statusMask(who, name)
	}
	if attr, err := unix.SchedGetAttr(pid, 0); err == nil && attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 &&
		attr.Policy != unix.SCHED_DEADLINE {
		id.Policy, id.Priority = attr.Policy, attr.Priority
	}
	if raw, err := unix.Getpriority(unix.PRIO_PROCESS, pid); err == nil {
		id.Nice = 20 - raw // the system call returns it so
	}
	if io, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioprioProcess, uintptr(pid), 0); errno == 0 {
		id.IO = int(io)
	}
	return id, nil
}

const ioprioProcess = 1 // IOPRIO_WHO_PROCESS

func numbers(text string) []int {
	var out []int
	for _, w := range strings.Fields(text) {
		n, err := strconv.ParseUint(w, 10, 32)
		if err != nil {
			return nil
		}
		out = append(out, int(n))
	}
	return out
}

func (i Identity) equal(o Identity) bool {
	same := slices.Equal(i.Groups, o.Groups)
	i.Groups, o.Groups = nil, nil
	return same && fmt.Sprint(i) == fmt.Sprint(o)
}

// sameUser reports whether both run as the same user and groups.
func (i Identity) sameUser(o Identity) bool {
	return i.UID == o.UID && i.GID == o.GID && slices.Equal(i.Groups, o.Groups)
}

// Names of capabilities, by number.
const (
	capChown   = 0
	capKill    = 5
	capSetGID  = 6
	capSetUID  = 7
	capSetPCap = 8
)

// mayStart returns why this process, own, cannot start and end processes of another identity; nil: it can.
func (i Identity) mayStart(own Identity, effective uint64) error {
	var missing []string
	need := func(bit int, name string) {
		if effective&(1<<bit) == 0 {
			missing = append(missing, name)
		}
	}
	if i.UID != own.UID {
		need(capSetUID, "SETUID")
		need(capKill, "KILL")
		need(capChown, "CHOWN")
	}
	if i.GID != own.GID || !slices.Equal(i.Groups, own.Groups) {
		need(capSetGID, "SETGID")
	}
	if own.Bounding&^i.Bounding != 0 {
		need(capSetPCap, "SETPCAP")
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the launcher runs as user %d, group %d, groups %v, and the agent, as user %d, group %d, groups %v, lacks the capabilities %s to start ranks so; "+
		"start the container as that user (securityContext.runAsUser) instead of changing it by gosu, su-exec, setpriv or sudo, or leave the container these capabilities",
		i.UID, i.GID, i.Groups, own.UID, own.GID, own.Groups, strings.Join(missing, ", "))
}

// effective returns the capabilities of this process.
func effective() uint64 { return statusMask(strconv.Itoa(os.Getpid()), "CapEff") }

// become gives the calling thread an identity before it execs another program.
func (i Identity) become(own Identity) error {
	if err := i.schedule(own); err != nil {
		return err
	}
	for bit := range 64 {
		if (own.Bounding&^i.Bounding)&(1<<bit) != 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil {
				return fmt.Errorf("dropping capability %d: %w", bit, err)
			}
		}
	}
	if !i.sameUser(own) {
		if err := i.changeUser(own); err != nil {
			return err
		}
	}
	if i.Inheritable != own.Inheritable || i.Ambient != 0 {
		if err := i.keepCapabilities(); err != nil {
			return err
		}
	}
	if i.NoNewPrivs && !own.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("setting no_new_privs: %w", err)
		}
	}
	return nil
}

// schedule applies the launcher's scheduling.
func (i Identity) schedule(own Identity) error {
	if i.Nice != own.Nice {
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, i.Nice); err != nil {
			return fmt.Errorf("taking nice %d: %w", i.Nice, err)
		}
	}
	if i.Policy != own.Policy || i.Priority != own.Priority {
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: i.Policy, Priority: i.Priority, Nice: int32(i.Nice)}
		if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
			return fmt.Errorf("taking scheduling policy %d, priority %d, nice %d: %w", i.Policy, i.Priority, i.Nice, err)
		}
	}
	if i.IO != own.IO {
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioProcess, 0, uintptr(i.IO)); errno != 0 {
			return fmt.Errorf("taking I/O priority %d: %w", i.IO, errno)
		}
	}
	return nil
}

// changeUser changes the calling thread's user and groups: Go's own functions change all threads, although only this one will exec.
func (i Identity) changeUser(own Identity) error {
	if !slices.Equal(i.Groups, own.Groups) {
		groups := make([]uint32, len(i.Groups)+1) // one more, for an address
		for k, g := range i.Groups {
			groups[k] = uint32(g)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(i.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
			return fmt.Errorf("taking groups %v: %w", i.Groups, errno)
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(i.GID), uintptr(i.GID), uintptr(i.GID)); errno != 0 {
		return fmt.Errorf("taking group %d: %w", i.GID, errno)
	}
	if i.UID == own.UID {
		return nil
	}
	if i.Inheritable != 0 || i.Ambient != 0 {
		_ = unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(i.UID), uintptr(i.UID), uintptr(i.UID)); errno != 0 {
		return fmt.Errorf("becoming user %d: %w", i.UID, errno)
	}
	return nil
}

// keepCapabilities sets the capabilities that an exec'd program inherits.
func (i Identity) keepCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	for half := range data {
		data[half].Inheritable = uint32(i.Inheritable >> (32 * half))
	}
	if err == nil {
		err = unix.Capset(&header, &data[0])
	}
	for bit := range 64 {
		if err == nil && i.Ambient&(1<<bit) != 0 {
			err = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(bit), 0, 0)
		}
	}
	if err != nil {
		return fmt.Errorf("keeping capabilities inheritable %x, ambient %x: %w", i.Inheritable, i.Ambient, err)
	}
	return nil
}

// MemoryPolicy is a process's NUMA policy, which only the process itself can read: set_mempolicy(2) selects among the nodes that its
// container has.
type MemoryPolicy struct {
	Mode  int        `json:"mode"`
	Nodes [16]uint64 `json:"nodes"`
}

const policyNodes = 16 * 64

func readMemoryPolicy() MemoryPolicy {
	var p MemoryPolicy
	var mode int32
	_, _, errno := unix.RawSyscall6(
		unix.SYS_GET_MEMPOLICY,
		uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&p.Nodes[0])),
		policyNodes,
		0,
		0,
		0,
	)
	if errno != 0 {
		return MemoryPolicy{}
	}
	p.Mode = int(mode)
	return p
}

func (p MemoryPolicy) set() error {
	nodes := uintptr(unsafe.Pointer(&p.Nodes[0]))
	if p.Nodes == ([16]uint64{}) {
		nodes = 0
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SET_MEMPOLICY, uintptr(p.Mode), nodes, policyNodes); errno != 0 {
		return fmt.Errorf("taking memory policy %d: %w", p.Mode, errno)
	}
	return nil
}

// limitNames are rows of /proc/PID/limits.
var limitNames = map[string]int{
	"Max address space": unix.RLIMIT_AS, "Max core file size": unix.RLIMIT_CORE, "Max cpu time": unix.RLIMIT_CPU, "Max data size": unix.RLIMIT_DATA,
	"Max file size": unix.RLIMIT_FSIZE, "Max locked memory": unix.RLIMIT_MEMLOCK, "Max msgqueue size": unix.RLIMIT_MSGQUEUE,
	"Max processes": unix.RLIMIT_NPROC, "Max pending signals": unix.RLIMIT_SIGPENDING, "Max stack size": unix.RLIMIT_STACK, "Max open files": unix.RLIMIT_NOFILE,
}

// confirm replaces limits that a launcher sent by those that the kernel reports for its process, where a false value would gain rights.
func (l *Limits) confirm(pid int, user unix.Ucred) error {
	l.Identity = Identity{UID: user.Uid, GID: user.Gid} // whatever happens next, never what the launcher sent
	id, err := identityOf(pid)
	if err != nil {
		return err
	}
	if id.UID != user.Uid || id.GID != user.Gid {
		return fmt.Errorf("process %d connected as user %d, group %d, and runs as %d, %d", pid, user.Uid, user.Gid, id.UID, id.GID)
	}
	l.Identity, l.Nice = id, id.Nice
	hard := hardLimits(pid)
	for r, said := range l.Resource {
		most, known := hard[r]
		if !known {
			var own unix.Rlimit
			if unix.Prlimit(0, r, nil, &own) != nil {
				delete(l.Resource, r)
				continue
			}
			most = own.Max
		}
		l.Resource[r] = [2]uint64{min(said[0], most), min(said[1], most)}
	}
	l.Files = min(l.Files, l.Resource[unix.RLIMIT_NOFILE][1])
	return nil
}

// hardLimits returns the hard limits in /proc for a process, as far as they can be read.
func hardLimits(pid int) map[int]uint64 {
	raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	out := map[int]uint64{}
	for line := range strings.Lines(string(raw)) {
		for name, r := range limitNames {
			rest, ok := strings.CutPrefix(line, name)
			f := strings.Fields(rest)
			if !ok || len(f) < 2 {
				continue
			}
			out[r] = unix.RLIM_INFINITY
			if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				out[r] = n
			}
		}
	}
	return out
}

// give makes the ranks' user the owner of a file.
func (j Job) give(path string) error { return j.Launch.Limits.Identity.give(path) }

func (id Identity) give(path string) error {
	if id.UID == uint32(os.Geteuid()) && id.GID == uint32(os.Getegid()) {
		return nil
	}
	err := os.Chown(path, int(id.UID), int(id.GID))
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

// GiveFiles makes the ranks' user the owner of what ranks write: the folder of their error files and, if they exist, their arenas.
func (j Job) GiveFiles(arenas bool) error {
	err := j.give(j.Root.Ranks())
	if err == nil {
		err = os.Chmod(j.Root.Ranks(), 0o755)
	}
	for local := range j.Spec.Ranks {
		if err == nil && arenas {
			err = j.give(j.Root.ArenaFile(local))
		}
	}
	return err
}

// TellSenders makes the kernel attach the sender to each datagram.
func TellSenders(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }); err != nil {
		return err
	}
	if set != nil {
		return fmt.Errorf("having senders of datagrams named: %w", set)
	}
	return nil
}

// ReadSent reads a datagram and its sender; an unknown sender gets a user ID that no user has.
func ReadSent(conn *net.UnixConn, buf []byte) (n int, user uint32, err error) {
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	user = ^uint32(0)
	if err != nil {
		return n, user, err
	}
	messages, bad := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); bad == nil && err == nil {
			user = cred.Uid
		}
	}
	return n, user, nil
}
