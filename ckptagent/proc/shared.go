//go:build linux

package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// sharedMemory is the folder of POSIX shared memory and semaphores.
const sharedMemory = "/dev/shm"

// sharedNote is the content of Root.SharedFile: what was in shared memory before ranks were started, and the users of ranks.
type sharedNote struct {
	Names []string `json:"names"`
	Users []uint32 `json:"users"`
}

// NoteShared records the content of shared memory before a launcher, or the container's command, starts its ranks: that is never removed.
// users are those of ranks besides this process's own. If other containers, or with hostIPC other pods, share the memory, nothing is
// recorded: their files look like those of ranks.
func NoteShared(root Root, users ...uint32) error {
	if os.Getenv(EnvShm) != "own" {
		return nil
	}
	names, err := sharedNames()
	raw, bad := json.Marshal(sharedNote{Names: names, Users: append(users, uint32(os.Geteuid()))})
	if err == nil {
		err = bad
	}
	if err == nil {
		err = Replace(root.SharedFile(), raw)
	}
	if err != nil {
		_ = os.Remove(root.SharedFile()) // an older record would make newer files removable
		return fmt.Errorf("recording the files in %s, which must not be removed: %w", sharedMemory, err)
	}
	return nil
}

// ClearShared removes the segments and semaphores that ended ranks have left in shared memory: their files that were created after
// NoteShared and that no process has open or mapped; none if nothing was recorded. ClearShared returns their names, and those of files that
// it keeps because some process of this container may use them and hides what it has open. Folders stay: POSIX functions create none.
func ClearShared(root Root, use SharedUse) (removed, kept []string) {
	raw, err := os.ReadFile(root.SharedFile())
	var noted sharedNote
	if err != nil || json.Unmarshal(raw, &noted) != nil {
		return nil, nil
	}
	names, _ := sharedNames()
	for _, name := range names {
		file := filepath.Join(sharedMemory, name)
		st, err := os.Lstat(file)
		if err != nil || !st.Mode().IsRegular() || slices.Contains(noted.Names, name) || slices.Contains(use.Names, name) {
			continue
		}
		owner := st.Sys().(*syscall.Stat_t).Uid
		switch {
		case !slices.Contains(noted.Users, owner):
		case use.mayBeOf(owner, st.Mode()):
			kept = append(kept, name)
		case os.Remove(file) == nil:
			removed = append(removed, name)
		}
	}
	return removed, kept
}

func sharedNames() ([]string, error) {
	entries, err := os.ReadDir(sharedMemory)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// SharedUse is what one user can see about the users of shared memory.
type SharedUse struct {
	// Names are the files that living processes have open or mapped.
	Names []string `json:"names"`
	// Unseen are the processes of this container that hide what they have open, with their users.
	Unseen map[int]uint32 `json:"unseen"`
}

// mayBeOf reports whether an unseen process may use a file of an owner.
func (u SharedUse) mayBeOf(owner uint32, mode fs.FileMode) bool {
	for _, user := range u.Unseen {
		if user == 0 || user == owner || mode.Perm()&0o066 != 0 {
			return true
		}
	}
	return false
}

// and combines what two users see.
func (u SharedUse) and(o SharedUse) SharedUse {
	unseen := maps.Clone(u.Unseen)
	maps.DeleteFunc(unseen, func(pid int, _ uint32) bool { _, neither := o.Unseen[pid]; return !neither })
	return SharedUse{Names: append(u.Names, o.Names...), Unseen: unseen}
}

// LookShared returns what this process's user sees.
func LookShared() SharedUse {
	use := SharedUse{Unseen: map[int]uint32{}}
	container, _ := os.ReadFile("/proc/self/cgroup") // a debug container in the same pid namespace has another one
	note := func(path string) {
		if name, ok := strings.CutPrefix(path, sharedMemory+"/"); ok && !slices.Contains(use.Names, name) {
			use.Names = append(use.Names, name)
		}
	}
	_, _ = find(func(pid int, _ stat) (bool, error) {
		dir := "/proc/" + strconv.Itoa(pid)
		files, err := os.ReadDir(dir + "/fd")
		for _, f := range files {
			if to, err := os.Readlink(dir + "/fd/" + f.Name()); err == nil {
				note(to)
			}
		}
		maps, err2 := os.ReadFile(dir + "/maps")
		for line := range strings.Lines(string(maps)) {
			if _, path, ok := strings.Cut(line, " /"); ok {
				note("/" + strings.TrimSuffix(path, "\n"))
			}
		}
		if !errors.Is(errors.Join(err, err2), fs.ErrPermission) {
			return false, nil
		}
		group, err := os.ReadFile(dir + "/cgroup")
		if users := numbers(statusField(strconv.Itoa(pid), "Uid")); len(users) > 0 && (err != nil || bytes.Equal(group, container)) {
			use.Unseen[pid] = uint32(users[0])
		}
		return false, nil
	})
	return use
}

// SharedUse combines what this process's user sees with what the ranks' user sees: a process may show its files only to its own user.
func (j Job) SharedUse() SharedUse {
	use := LookShared()
	var theirs SharedUse
	if out, ok := j.asRanks("shared", ""); ok && json.Unmarshal(out, &theirs) == nil {
		return use.and(theirs)
	}
	return use
}
