//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/proc"
)

// place has the folders of one run. Each has a lock that the run's processes hold, so that a later run can remove what a killed one left.
//
//	holdfast-run-*/        in the folder for temporary files
//	  lock
//	  h/                   as in a pod: the agent and its files
//	  h/memory             a link to the state
//	holdfast-run-*/        in shared memory
//	  lock
//	  state/
type place struct {
	root    proc.Root
	folders []string
	locks   []*os.File
}

const (
	runsPrefix   = "holdfast-run-"
	sharedMemory = "/dev/shm"
	// longestParent bounds the length of the folder for temporary files: a socket's path has at most 107 bytes.
	longestParent = 40
)

// newPlace makes the folders of a run, installs the agent there, and removes what runs of this user left that were killed.
func newPlace() (p place, err error) {
	agent, err := agentBinary()
	if err != nil {
		return p, err
	}
	parent := os.TempDir()
	if len(parent) > longestParent {
		return p, fmt.Errorf("TMPDIR=%s has %d bytes, and sockets in it would have too long a path: set TMPDIR to a folder of at most %d bytes", parent, len(parent), longestParent)
	}
	defer func() {
		if err != nil {
			p.remove()
		}
	}()
	folder, err := p.makeFolder(parent)
	if err != nil {
		return p, fmt.Errorf("making the folder of the run: %w; set TMPDIR to a folder that can be written", err)
	}
	p.root = proc.Root(filepath.Join(folder, "h"))
	if out, bad := exec.Command(agent, "install", string(p.root)).CombinedOutput(); bad != nil {
		return p, fmt.Errorf("installing the agent in %s: %w %s", p.root, bad, strings.TrimSpace(string(out)))
	}
	return p, p.makeMemory()
}

// agentBinary returns the agent's program, which is beside this one.
func agentBinary() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	agent := filepath.Join(filepath.Dir(own), "holdfast-agent")
	if _, err := os.Stat(agent); err != nil {
		return "", fmt.Errorf("%w; put holdfast-agent beside %s", err, own)
	}
	return agent, nil
}

// makeFolder makes a folder of the run, locked before it gets its name, and removes those of killed runs beside it.
func (p *place) makeFolder(parent string) (string, error) {
	sweep(parent)
	unlocked, err := os.MkdirTemp(parent, "."+runsPrefix)
	if err != nil {
		return "", err
	}
	p.folders = append(p.folders, unlocked)
	lock, err := os.OpenFile(filepath.Join(unlocked, "lock"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	p.locks = append(p.locks, lock)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	folder := filepath.Join(parent, filepath.Base(unlocked)[1:])
	if err := os.Rename(unlocked, folder); err != nil {
		return "", err
	}
	p.folders[len(p.folders)-1] = folder
	return folder, nil
}

// makeMemory makes the folder for ranks' state: in shared memory where there is one, else in the run's folder.
func (p *place) makeMemory() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(sharedMemory, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return os.Mkdir(p.root.Memory(), 0o700)
	}
	folder, err := p.makeFolder(sharedMemory)
	if err != nil {
		return fmt.Errorf("making the folder for state in memory: %w", err)
	}
	state := filepath.Join(folder, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return fmt.Errorf("making the folder for state in memory: %w", err)
	}
	return os.Symlink(state, p.root.Memory())
}

func (p *place) writeToken(token string) error {
	if err := os.Mkdir(filepath.Dir(p.root.Token()), 0o700); err != nil {
		return fmt.Errorf("making the folder for the token: %w", err)
	}
	if err := os.WriteFile(p.root.Token(), []byte(token), 0o600); err != nil {
		return fmt.Errorf("writing the token: %w", err)
	}
	return nil
}

// remove removes the run's folders.
func (p *place) remove() {
	for _, folder := range p.folders {
		_ = os.RemoveAll(folder)
	}
}

// sweep removes the folders of this user's runs of which no process is left. Other users can make folders of such names.
func sweep(parent string) {
	folders, _ := filepath.Glob(filepath.Join(parent, runsPrefix+"*"))
	for _, folder := range folders {
		if st, err := os.Lstat(folder); err != nil || !st.IsDir() || !own(st) {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		st, err := lock.Stat()
		if err == nil && st.Mode().IsRegular() && own(st) && unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(folder)
		}
		lock.Close()
	}
}

// own reports whether a file is this user's.
func own(st os.FileInfo) bool { return st.Sys().(*syscall.Stat_t).Uid == uint32(os.Geteuid()) }
