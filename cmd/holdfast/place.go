//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/proc"
)

// place is the folder of one run. Its lock is held by the run's processes, so that a later run can remove what a killed one left.
//
//	holdfast-run-*/        in the folder for temporary files
//	  lock
//	  h/                   as in a pod: the agent and its files
//	  h/memory             a link to a folder in shared memory
type place struct {
	folder, memory string
	root           proc.Root
	lock           *os.File
}

const (
	runsPrefix   = "holdfast-run-"
	sharedMemory = "/dev/shm"
	// longestFolder bounds the path of a run: a socket's path has at most 107 bytes.
	longestFolder = 60
)

// newPlace makes the folder of a run, installs the agent there, and removes what runs of this user left that were killed.
func newPlace() (p place, err error) {
	agent, err := agentBinary()
	if err != nil {
		return p, err
	}
	parent := os.TempDir()
	if len(parent) > longestFolder-len(runsPrefix)-16 {
		parent = "/tmp"
	}
	sweep(parent)
	unlocked, err := os.MkdirTemp(parent, "."+runsPrefix)
	if err != nil {
		return p, fmt.Errorf("making the folder of the run: %w; set TMPDIR to a folder that can be written", err)
	}
	p.folder = unlocked
	defer func() {
		if err != nil {
			p.remove()
		}
	}()
	if p.lock, err = os.Create(filepath.Join(p.folder, "lock")); err != nil {
		return p, fmt.Errorf("making the lock of the run: %w", err)
	}
	if err = unix.Flock(int(p.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return p, fmt.Errorf("locking the run: %w", err)
	}
	if p.folder = filepath.Join(parent, filepath.Base(unlocked)[1:]); os.Rename(unlocked, p.folder) != nil {
		p.folder = unlocked // no later run removes it, if this one is killed
	}
	p.root = proc.Root(filepath.Join(p.folder, "h"))
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

// makeMemory makes the folder for ranks' state: in shared memory where there is one, else in the run's folder.
func (p *place) makeMemory() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(sharedMemory, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return os.Mkdir(p.root.Memory(), 0o700)
	}
	p.memory = filepath.Join(sharedMemory, filepath.Base(p.folder))
	if err := os.Mkdir(p.memory, 0o700); err != nil {
		return fmt.Errorf("making the folder for state in memory: %w", err)
	}
	return os.Symlink(p.memory, p.root.Memory())
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
	if p.memory != "" {
		_ = os.RemoveAll(p.memory)
	}
	_ = os.RemoveAll(p.folder)
}

// sweep removes the folders of this user's runs of which no process is left.
func sweep(parent string) {
	folders, _ := filepath.Glob(filepath.Join(parent, runsPrefix+"*"))
	for _, folder := range folders {
		lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil { // another user's, or a run that begins
			continue
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			(&place{folder: folder, memory: filepath.Join(sharedMemory, filepath.Base(folder))}).remove()
		}
		lock.Close()
	}
}
