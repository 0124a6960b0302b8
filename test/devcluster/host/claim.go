// Package host changes the machine for a dev cluster: it reserves a name, an address range, cgroups and a network link,
// and releases them. Each of these is written into the cluster's record before it is created. Only what is in the
// record is removed.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// DefaultBase is the default folder of clusters.
const DefaultBase = "/var/lib/hf"

// ErrRunning: a cluster of that name is up.
var ErrRunning = errors.New("already running")

// lock serialises claims and removals on this machine.
func lock() (func(), error) {
	f, err := os.OpenFile("/run/lock/holdfast-dev", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("taking the lock: %w", err)
	}
	return func() { f.Close() }, nil
}

// Claim removes dead clusters, then reserves spec's name, directory and
// address range and writes its record. It fills in Dir and Octet.
func Claim(base string, spec layout.Spec, say func(string)) (*layout.Record, error) {
	unlock, err := lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec.Dir = filepath.Join(base, spec.Name)
	if err := removeDead(base, say); err != nil {
		return nil, err
	}
	if rec, err := layout.ReadRecord(spec.Dir); err == nil {
		if Alive(rec.Supervisor) || Alive(rec.Owner) {
			return nil, fmt.Errorf("cluster %s: %w; stop it with: holdfast-dev down --name %s", spec.Name, ErrRunning, spec.Name)
		}
	}
	if _, err := net.InterfaceByName(spec.HostLink()); err == nil {
		return nil, fmt.Errorf("a link %s exists and is in no record of %s; choose another --name", spec.HostLink(), base)
	}
	taken, err := takenNets(base)
	if err != nil {
		return nil, err
	}
	if spec.Octet, err = layout.FreeOctet(taken, os.Getpid()); err != nil {
		return nil, err
	}
	cgroups, err := CgroupDirs(spec.CgroupPath())
	if err != nil {
		return nil, err
	}
	owner, err := Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return nil, err
	}
	rec := &layout.Record{Spec: spec, Links: []string{spec.HostLink()}, Cgroups: cgroups, Owner: owner}
	return rec, rec.Write()
}

// Records lists the clusters under base, running or not.
func Records(base string) ([]*layout.Record, error) {
	paths, err := filepath.Glob(filepath.Join(base, "*", layout.RecordFile))
	if err != nil {
		return nil, err
	}
	var out []*layout.Record
	for _, p := range paths {
		rec, err := layout.ReadRecord(filepath.Dir(p))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if rec.Spec.Dir != filepath.Dir(p) {
			return nil, fmt.Errorf("record %s is of %s; move it back or remove it by hand", p, rec.Spec.Dir)
		}
		out = append(out, rec)
	}
	return out, nil
}

func takenNets(base string) ([]*net.IPNet, error) {
	var taken []*net.IPNet
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil {
			taken = append(taken, r.Dst)
		}
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		taken = append(taken, a.IPNet)
	}
	recs, err := Records(base)
	if err != nil {
		return nil, err
	}
	for _, r := range recs {
		if _, n, err := net.ParseCIDR(r.Spec.Supernet()); err == nil {
			taken = append(taken, n)
		}
	}
	return taken, nil
}
