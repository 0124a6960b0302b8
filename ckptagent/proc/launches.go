//go:build linux

package proc

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Launch is a user's launcher whose place a shim has taken.
type Launch struct {
	ID     string
	Argv   []string
	Dir    string
	Env    map[string]string
	Files  [3]*os.File
	Limits Limits
	// Shim is the shim's process.
	Shim Process
	// Invalid is an error in what the kernel reports about the connection: not one launcher of one user.
	Invalid error

	devices devices
	conn    *net.UnixConn
	once    sync.Once
}

// maxHello bounds a shim's request, in bytes: arguments and environment are below 6 MiB on Linux.
const maxHello = 16 << 20

// Launches accepts shims at the launch socket.
func Launches(root Root, arrived func(*Launch), signalled func(*Launch, int), left func(*Launch)) (io.Closer, error) {
	path := root.LaunchSocket()
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening for launchers: %w", err)
	}
	l.SetUnlinkOnClose(false) // the next agent's socket has the same path
	_ = os.Chmod(path, 0o777)
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go serve(conn, arrived, signalled, left)
		}
	}()
	return l, nil
}

func serve(conn *net.UnixConn, arrived func(*Launch), signalled func(*Launch, int), left func(*Launch)) {
	defer conn.Close()
	launch, err := receive(conn)
	if err != nil {
		return
	}
	arrived(launch)
	r := bufio.NewReaderSize(conn, maxPublished)
	for {
		line, err := r.ReadSlice('\n') // no shim sends a longer one
		var w word
		if err == nil && json.Unmarshal(line, &w) == nil && w.Signal > 0 {
			signalled(launch, w.Signal)
		}
		if err != nil {
			left(launch)
			return
		}
	}
}

func receive(conn *net.UnixConn) (*Launch, error) {
	size, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(size, oob)
	if err == nil && n < 4 {
		_, err = io.ReadFull(conn, size[n:])
	}
	if err != nil {
		return nil, fmt.Errorf("reading from a launcher: %w", err)
	}
	files, err := descriptors(oob[:oobn])
	if err != nil {
		return nil, err
	}
	l := &Launch{Files: files, conn: conn}
	if err := l.read(binary.BigEndian.Uint32(size)); err != nil {
		l.Close()
		return nil, fmt.Errorf("reading from a launcher: %w", err)
	}
	return l, nil
}

// read reads the request, of size bytes, and identifies its sender.
func (l *Launch) read(size uint32) (err error) {
	body := make([]byte, min(size, maxHello))
	if _, err := io.ReadFull(l.conn, body); err != nil {
		return err
	}
	var h hello
	if err := json.Unmarshal(body, &h); err != nil {
		return err
	}
	l.ID, l.Argv, l.Dir, l.Env, l.Limits = h.ID, h.Argv, h.Dir, envMap(h.Env), h.Limits
	var user unix.Ucred
	if l.Shim, user, err = peer(l.conn); err == nil {
		l.Invalid = l.Limits.confirm(l.Shim.PID, user)
	}
	return err
}

func descriptors(oob []byte) (files [3]*os.File, err error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return files, fmt.Errorf("a launcher sent no descriptors: %w", err)
	}
	fds, err := syscall.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 3 {
		for _, fd := range fds {
			_ = syscall.Close(fd)
		}
		return files, fmt.Errorf("a launcher sent %d descriptors: %w", len(fds), err)
	}
	for i, fd := range fds {
		syscall.CloseOnExec(fd)
		files[i] = os.NewFile(uintptr(fd), []string{"stdin", "stdout", "stderr"}[i])
	}
	return files, nil
}

// peer returns the connected process and its user.
func peer(conn *net.UnixConn) (Process, unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Process{}, unix.Ucred{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return Process{}, unix.Ucred{}, err
	}
	if credErr != nil {
		return Process{}, unix.Ucred{}, fmt.Errorf("finding a launcher's process: %w", credErr)
	}
	st, err := readStat(int(cred.Pid))
	return Process{PID: int(cred.Pid), Start: st.start}, *cred, err
}

// Refuse sends the launcher the reason of its refusal; it ends with exit code 2.
func (l *Launch) Refuse(why string) { l.answer(answer{Refused: why}) }

// Return lets the launcher return.
func (l *Launch) Return(o Outcome) { l.answer(answer{Outcome: &o}) }

func (l *Launch) answer(a answer) {
	l.once.Do(func() {
		line, _ := json.Marshal(a)
		_, _ = l.conn.Write(append(line, '\n'))
	})
}

// Close closes the launcher's descriptors.
func (l *Launch) Close() {
	for _, f := range l.Files {
		f.Close()
	}
}

// environ is the launcher's environment as a list.
func (l *Launch) environ(set map[string]string) []string {
	env := make(map[string]string, len(l.Env)+len(set))
	maps.Copy(env, l.Env)
	maps.Copy(env, set)
	return sortedEnv(env)
}

// interpreter returns the Python that the launcher would run: the one in the first line of its installation's script, else python3 or
// python on PATH.
func (l *Launch) interpreter() (string, error) {
	if launcher := l.lookPath("torchrun"); launcher != "" {
		if p := l.firstLine(launcher); p != "" {
			return p, nil
		}
	}
	for _, name := range []string{"python3", "python"} {
		if p := l.lookPath(name); p != "" {
			return p, nil
		}
	}
	return "", fmt.Errorf("finding the Python interpreter of torchrun: none on PATH=%s; write python -m torch.distributed.run, or put python3 on PATH", l.Env["PATH"])
}

// lookPath finds a program on the launcher's PATH, without Holdfast's shims.
func (l *Launch) lookPath(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, dir := range strings.Split(l.Env["PATH"], ":") {
		if dir == "" {
			dir = l.Dir
		}
		if dir == l.Env[EnvRoot]+"/shims" {
			continue
		}
		if !strings.HasPrefix(dir, "/") {
			dir = l.Dir + "/" + dir
		}
		file := dir + "/" + name
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// firstLine returns the interpreter of a script, also from the two-line form that pip writes for long paths.
func (l *Launch) firstLine(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	r := bufio.NewReader(io.LimitReader(f, 8192))
	first, _ := r.ReadString('\n')
	words := strings.Fields(strings.TrimPrefix(first, "#!"))
	if !strings.HasPrefix(first, "#!") || len(words) == 0 {
		return ""
	}
	if words[0] == "/bin/sh" {
		second, _ := r.ReadString('\n')
		rest, ok := strings.CutPrefix(second, `'''exec' `)
		if !ok {
			return ""
		}
		words = strings.Fields(rest)
		if strings.HasPrefix(rest, `"`) {
			quoted, _, _ := strings.Cut(rest[1:], `"`)
			words = []string{quoted}
		}
	}
	if strings.HasSuffix(words[0], "/env") && len(words) > 1 {
		return l.lookPath(words[len(words)-1])
	}
	if len(words) == 0 || !strings.Contains(words[0], "python") {
		return ""
	}
	return words[0]
}
