// Package launch starts a dev cluster. Up reserves names and addresses, writes certificates, starts the supervisor in
// new namespaces and connects the supervisor with the machine. If one of these steps fails, Up removes everything
// again.
package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/kmsg"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/pki"
	"holdfast.dev/holdfast/test/devcluster/wire"
)

// Up starts the cluster and waits until it is ready, ctx ends or the start fails. An attached cluster's processes end with the calling one.
// say receives progress, one line at a time.
func Up(ctx context.Context, base string, spec layout.Spec, attached bool, say func(string)) (*layout.Record, error) {
	if err := Preflight(); err != nil {
		return nil, err
	}
	rec, err := host.Claim(base, spec, say)
	if err != nil {
		return nil, err
	}
	warnInotify(say)
	if err := start(ctx, rec, attached, say); err != nil {
		return nil, errors.Join(withLog(rec, err), host.Remove(rec))
	}
	return rec, nil
}

// Preflight returns an error if this machine cannot run real nodes.
func Preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("the dev cluster makes network links, mounts and cgroups: run it as root")
	}
	for program, pkg := range map[string]string{
		"containerd": "containerd", "ctr": "containerd", "runc": "runc", "nft": "nftables", "iptables": "iptables",
		"conntrack": "conntrack", "nsenter": "util-linux", "mount": "mount",
	} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the dev cluster needs the program %s: apt-get install --no-install-recommends %s", program, pkg)
		}
	}
	if _, err := os.Stat("/usr/lib/cni/ptp"); err != nil {
		return errors.New("the dev cluster needs /usr/lib/cni/ptp: apt-get install --no-install-recommends containernetworking-plugins")
	}
	fuse, err := kmsg.OpenFUSE()
	if err != nil {
		return err
	}
	return syscall.Close(fuse)
}

// warnInotify warns if the kernel's default allows only two or three clusters.
func warnInotify(say func(string)) {
	const path, clusterNeeds = "/proc/sys/fs/inotify/max_user_instances", 64
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n < 4*clusterNeeds {
		say(fmt.Sprintf("note: fs.inotify.max_user_instances is %d and a cluster of three nodes takes about %d; for more clusters at once: sysctl -w fs.inotify.max_user_instances=512", n, clusterNeeds))
	}
}

func start(ctx context.Context, rec *layout.Record, attached bool, say func(string)) error {
	s := &rec.Spec
	say(fmt.Sprintf("cluster %s: %d real and %d simulated nodes, addresses %s, files in %s", s.Name, s.Nodes, s.Sim.Nodes, s.Supernet(), s.Dir))
	if err := pki.WriteCluster(s, time.Now()); err != nil {
		return fmt.Errorf("issuing certificates: %w", err)
	}
	if err := linkPrograms(s); err != nil {
		return err
	}
	if err := host.MakeDriver(s, say); err != nil {
		return err
	}
	if err := host.MakeCgroups(s.CgroupPath()); err != nil {
		return err
	}
	if err := supervisor(rec, attached); err != nil {
		return err
	}
	return follow(ctx, rec, say)
}

// untilWeEnd keeps unreferenced pipes from being closed.
var untilWeEnd []*os.File

// linkPrograms links kubectl, and this program, into a folder for the user's PATH.
func linkPrograms(s *layout.Spec) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.BinDir(), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"kubectl", "holdfast-dev"} {
		at := filepath.Join(s.BinDir(), name)
		if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.Symlink(self, at); err != nil {
			return err
		}
	}
	return nil
}

// supervisor starts process 1 of the cluster. Process 1 waits until it is in the cluster's record, and ends by itself if it never is.
// Process 1 of an attached cluster ends when the pipe for its orders closes, which the calling process holds until its end.
func supervisor(rec *layout.Record, attached bool) error {
	s := &rec.Spec
	orders, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	word := layout.Go
	if attached {
		word = layout.GoWithMe
		untilWeEnd = append(untilWeEnd, tell)
	} else {
		defer tell.Close()
	}
	if err := os.MkdirAll(s.Path("logs"), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(s.Log("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", "supervise", s.Dir)
	cmd.Args[0] = "holdfast-dev"
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	if gc := os.Getenv("GOGC"); gc != "" { // tests have few processors and enough memory
		cmd.Env = append(cmd.Env, "GOGC="+gc)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{orders}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
	}
	err = cmd.Start()
	orders.Close()
	if err != nil {
		return fmt.Errorf("starting the supervisor: %w", err)
	}
	go func() { _ = cmd.Wait() }() // only to reap it; its state is read from its status file
	if rec.Supervisor, err = host.Identify(cmd.Process.Pid); err != nil {
		return err
	}
	if err := rec.Write(); err != nil {
		return err
	}
	if err := host.JoinCgroups(s.CgroupPath(), "system", cmd.Process.Pid); err != nil {
		return err
	}
	if err := wire.Host(s, cmd.Process.Pid); err != nil {
		return err
	}
	_, err = fmt.Fprintln(tell, word)
	return err
}

// follow waits until the supervisor reports that the cluster is ready.
func follow(ctx context.Context, rec *layout.Record, say func(string)) error {
	last := ""
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		st, err := layout.ReadStatus(rec.Spec.Dir)
		switch {
		case err != nil && !os.IsNotExist(err):
			return err
		case err != nil:
		case st.Phase == layout.Ready:
			say(fmt.Sprintf("ready after %.1f s", st.ReadySeconds))
			tick.Stop()
			return nil
		case st.Phase == layout.Broken:
			return errors.New(st.Message)
		case st.Message != last:
			last = st.Message
			say("starting " + last)
		}
		if !host.Alive(rec.Supervisor) {
			return fmt.Errorf("the supervisor ended; see %s", rec.Spec.Log("supervisor"))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("starting cluster %s: %w", rec.Spec.Name, ctx.Err())
		case <-tick.C:
		}
	}
}

// withLog adds the end of the supervisor's log, which is removed with the cluster.
func withLog(rec *layout.Record, err error) error {
	const most = 3000
	b, readErr := os.ReadFile(rec.Spec.Log("supervisor"))
	if readErr != nil || len(b) == 0 {
		return err
	}
	if keep := os.Getenv("HOLDFAST_DEV_FAILED_LOGS"); keep != "" {
		if out, cpErr := exec.Command("cp", "-r", rec.Spec.Path("logs"), rec.Spec.Path("nodes"), keep).CombinedOutput(); cpErr != nil {
			err = errors.Join(err, fmt.Errorf("keeping logs: %w: %s", cpErr, out))
		}
	}
	return fmt.Errorf("%w\nsupervisor.log ends with:\n%s", err, b[max(0, len(b)-most):])
}
