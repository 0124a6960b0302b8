// Package enter runs commands in the namespaces of a running dev cluster.
package enter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/wire"
)

// Node returns a command that runs inside a node, as a shell on that machine would.
func Node(ctx context.Context, rec *layout.Record, node string, args ...string) (*exec.Cmd, error) {
	pid, err := host.NodeInit(rec, node)
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, fmt.Errorf("node %s of cluster %s is off", node, rec.Spec.Name)
	}
	return exec.CommandContext(ctx, "nsenter", append([]string{
		"-t", strconv.Itoa(pid), "-m", "-n", "-p", "-u", "-i", "--",
	}, args...)...), nil
}

// Router returns a command in the network namespace of the router that connects all nodes.
func Router(ctx context.Context, rec *layout.Record, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(rec.Supervisor.PID), "-n", "--"}, args...)...)
}

// Cut disconnects node i's link, or connects it again.
func Cut(ctx context.Context, rec *layout.Record, i int, cut bool) error {
	cmd := Router(ctx, rec, wire.CutArgs(rec.Spec.NodeLink(i), cut)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("changing the cable of node %s: %w: %s", rec.Spec.NodeName(i), err, out)
	}
	return nil
}

// Import loads an image archive into one node.
func Import(ctx context.Context, rec *layout.Record, node string, archive io.Reader) error {
	cmd, err := Node(ctx, rec, node, "ctr", "-n", "k8s.io", "images", "import", "-")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = archive, &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("importing an image into node %s: %w: %s", node, err, out.String())
	}
	return nil
}

// ImportAll loads an image archive into several nodes concurrently: one import keeps less than one core busy.
func ImportAll(ctx context.Context, rec *layout.Record, nodes []string, archive []byte) error {
	failed := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() { failed[i] = Import(ctx, rec, node, bytes.NewReader(archive)) })
	}
	all.Wait()
	return errors.Join(failed...)
}

// Named returns a command in the machine's own network for which the cluster's names resolve; the machine is not changed.
func Named(ctx context.Context, rec *layout.Record, args ...string) (*exec.Cmd, error) {
	resolv := rec.Spec.Path("resolv.conf")
	if err := os.WriteFile(resolv, []byte(ResolvConf(&rec.Spec)), 0o644); err != nil {
		return nil, err
	}
	script := `mount --bind "$1" /etc/resolv.conf && shift && exec "$@"`
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"-m", "--propagation", "private", "--", "sh", "-c", script, "run", resolv}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+rec.Spec.Kubeconfig(), "PATH="+rec.Spec.BinDir()+":"+os.Getenv("PATH"))
	return cmd, nil
}

// ResolvConf makes a resolver query the cluster as a pod of the default namespace does.
func ResolvConf(s *layout.Spec) string {
	return fmt.Sprintf("nameserver %s\nsearch default.svc.%[2]s svc.%[2]s %[2]s\noptions ndots:5\n", s.DNSIP(), layout.ClusterDomain)
}
