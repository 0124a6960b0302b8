package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// timeout bounds the end of a cluster's processes.
const timeout = 20 * time.Second

// Remove ends a cluster and removes everything in its record. The cluster may be running, dead or half created.
func Remove(rec *layout.Record) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if rec, err = current(rec); rec == nil {
		return err
	}
	return remove(rec)
}

// current reads a record again; nil if another caller has removed it meanwhile.
func current(rec *layout.Record) (*layout.Record, error) {
	now, err := layout.ReadRecord(rec.Spec.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return now, err
}

// RemoveDead removes the clusters under base whose processes have ended.
func RemoveDead(base string, say func(string)) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	return removeDead(base, say)
}

func removeDead(base string, say func(string)) error {
	recs, err := Records(base)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if Alive(rec.Supervisor) || (rec.Supervisor.PID == 0 && Alive(rec.Owner)) {
			continue
		}
		say(fmt.Sprintf("removing what is left of cluster %s, which is dead", rec.Spec.Name))
		if err := remove(rec); err != nil {
			return fmt.Errorf("removing dead cluster %s: %w", rec.Spec.Name, err)
		}
	}
	return nil
}

func remove(rec *layout.Record) error {
	deadline := time.Now().Add(timeout)
	if err := Kill(rec.Supervisor); err != nil {
		return err
	}
	for Alive(rec.Supervisor) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d of cluster %s does not end", rec.Supervisor.PID, rec.Spec.Name)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := RemoveCgroups(rec.Cgroups, deadline); err != nil {
		return err
	}
	for _, name := range rec.Links {
		if err := removeLink(name); err != nil {
			return err
		}
	}
	if err := unmountBelow(rec.Spec.Dir); err != nil {
		return err
	}
	// The record is removed last: until then another call can finish the work.
	entries, err := os.ReadDir(rec.Spec.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != layout.RecordFile {
			if err := os.RemoveAll(filepath.Join(rec.Spec.Dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.RemoveAll(rec.Spec.Dir); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(rec.Spec.Dir)) // stays while it contains another cluster
	return nil
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return ignoreNoLink(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		if _, again := netlink.LinkByName(name); ignoreNoLink(again) == nil && again != nil {
			return nil // the kernel removed it together with its namespace
		}
		return fmt.Errorf("removing link %s: %w", name, err)
	}
	return nil
}

func ignoreNoLink(err error) error {
	var gone netlink.LinkNotFoundError
	if errors.As(err, &gone) {
		return nil
	}
	return err
}

// unmountBelow detaches mounts inside dir. A cluster creates none on the machine; this keeps a removal from deleting files through
// another's mount.
func unmountBelow(dir string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
				return fmt.Errorf("unmounting %s: %w", fields[4], err)
			}
		}
	}
	return nil
}
