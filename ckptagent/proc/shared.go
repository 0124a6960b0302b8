//go:build linux

package proc

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// sharedMemory is where POSIX shared memory and semaphores lie.
const sharedMemory = "/dev/shm"

// NoteShared notes what lies in shared memory before a launcher, or the container's command, starts its ranks: that stays. Where other
// containers, or with hostIPC other pods, share it, nothing is noted: files of theirs look like those that ranks have left.
func NoteShared(root Root) error {
	if os.Getenv(EnvShm) != "own" {
		return nil
	}
	names, err := sharedNames()
	raw, bad := json.Marshal(names)
	if err == nil {
		err = bad
	}
	if err == nil {
		err = Replace(root.SharedFile(), raw)
	}
	if err != nil {
		_ = os.Remove(root.SharedFile()) // an older one would have what came since removed
		return fmt.Errorf("noting what lies in %s, so that nothing there is removed: %w", sharedMemory, err)
	}
	return nil
}

// ClearShared removes the segments and semaphores that ended ranks have left in shared memory: files of theirs that came after NoteShared
// and that no process has open or mapped; none where nothing was noted. It returns their names. Folders stay: nothing of POSIX makes any.
func ClearShared(root Root, users ...uint32) (removed []string) {
	raw, err := os.ReadFile(root.SharedFile())
	var noted []string
	if err != nil || json.Unmarshal(raw, &noted) != nil {
		return nil
	}
	names, _ := sharedNames()
	left := slices.DeleteFunc(names, func(name string) bool {
		st, err := os.Lstat(filepath.Join(sharedMemory, name))
		return err != nil || !st.Mode().IsRegular() || slices.Contains(noted, name) || !slices.Contains(users, st.Sys().(*syscall.Stat_t).Uid)
	})
	if len(left) == 0 {
		return nil
	}
	used := sharedInUse()
	for _, name := range left {
		if !used[name] && os.Remove(filepath.Join(sharedMemory, name)) == nil {
			removed = append(removed, name)
		}
	}
	return removed
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

// sharedInUse names what living processes have open or mapped, as far as these are shown.
func sharedInUse() map[string]bool {
	used := map[string]bool{}
	note := func(path string) {
		if name, ok := strings.CutPrefix(path, sharedMemory+"/"); ok {
			used[name] = true
		}
	}
	dirs, _ := fs.Glob(os.DirFS("/proc"), "[0-9]*")
	for _, pid := range dirs {
		files, _ := filepath.Glob("/proc/" + pid + "/fd/*")
		for _, f := range files {
			if to, err := os.Readlink(f); err == nil {
				note(to)
			}
		}
		maps, _ := os.ReadFile("/proc/" + pid + "/maps")
		for line := range strings.Lines(string(maps)) {
			if _, path, ok := strings.Cut(line, " /"); ok {
				note("/" + strings.TrimSuffix(path, "\n"))
			}
		}
	}
	return used
}
