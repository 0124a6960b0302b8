package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// sharedIn is layout.SharedDir inside the node's directory.
var sharedIn = filepath.Join("lib", filepath.Base(layout.SharedDir))

// enterRoot turns the process's mount namespace into the node's file system: the machine's, with its own /etc (changes stay in the node),
// /var/lib, /var/log, /tmp, /run, /proc, /sys and /dev/kmsg.
func enterRoot(s *layout.Spec, i int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("leaving the machine's mounts: %w", err)
	}
	for _, d := range []string{"etc", "etc.work", "lib", "lib/holdfast-dev/hold", "lib/kubelet", "lib/cni", sharedIn, "log", "tmp"} {
		if err := os.MkdirAll(s.NodePath(i, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(s.NodePath(i, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if err := newBoot(s, i); err != nil {
		return err
	}
	if err := serveKernelLog(s, i); err != nil {
		return err
	}
	steps := []mount{
		{s.NodePath(i, "log"), "/var/log", "", unix.MS_BIND, ""},
		{"overlay", "/etc", "overlay", 0, fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", s.NodePath(i, "etc"), s.NodePath(i, "etc.work"))},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755,size=256m"},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{s.NodePath(i, "boot_id"), bootIDFile, "", unix.MS_BIND, ""},
		{s.NodePath(i, "tmp"), "/tmp", "", unix.MS_BIND, ""},
		{s.Shared(), s.NodePath(i, sharedIn), "", unix.MS_BIND, ""},
		// Hides the cluster's directory, so it comes last. It includes the mounts below it.
		{s.NodePath(i, "lib"), "/var/lib", "", unix.MS_BIND | unix.MS_REC, ""},
	}
	if err := freshSys(); err != nil {
		return err
	}
	for _, m := range steps {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("sharing the node's mounts with its containers: %w", err)
	}
	return nil
}

// freshSys mounts a sysfs with the node's own network links, and below it the cgroup trees as seen from the node's cgroup namespace: from
// its own cgroup down.
func freshSys() error {
	const at, safe = "/sys/fs/cgroup", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	trees, err := host.Hierarchies()
	if err != nil {
		return err
	}
	links, err := symlinks(at)
	if err != nil {
		return err
	}
	steps := []mount{{"sysfs", "/sys", "sysfs", safe, ""}}
	if trees[0].Mount != at {
		steps = append(steps, mount{"tmpfs", at, "tmpfs", safe, "mode=755"})
	}
	for _, t := range trees {
		if t.V2 {
			steps = append(steps, mount{"cgroup2", t.Mount, "cgroup2", safe, ""})
		} else {
			steps = append(steps, mount{"cgroup", t.Mount, "cgroup", safe, strings.Join(t.Options, ",")})
		}
	}
	for _, m := range steps {
		if m.to != at && m.to != "/sys" {
			if err := os.MkdirAll(m.to, 0o755); err != nil {
				return err
			}
		}
		if err := m.do(); err != nil {
			return err
		}
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	return host.StepAside("/")
}

// symlinks returns the other names of trees, such as cpu for cpu,cpuacct.
func symlinks(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink == 0 {
			continue
		}
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		out[e.Name()] = to
	}
	return out, nil
}

type mount struct {
	from, to, kind string
	flags          uintptr
	data           string
}

func (m mount) do() error {
	if err := unix.Mount(m.from, m.to, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", m.from, m.to, err)
	}
	return nil
}

func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
