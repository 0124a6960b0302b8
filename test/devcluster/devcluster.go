// Package devcluster starts one-machine Kubernetes clusters for tests, demos and benchmarks. The package runs the built
// binary holdfast-dev as a child and does not import k8s.io/kubernetes, so that tests link quickly. A cluster ends when
// the process that started it ends, even if that process is killed.
package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// Options describe a cluster. The zero value is one real node with 2 GPUs and a generated name.
type Options struct {
	// Name of the cluster; an earlier one of that name must be down.
	Name string
	// Nodes is the number of real nodes; 1 if that and SimNodes are 0.
	Nodes int
	// SimNodes is the number of simulated nodes.
	SimNodes int
	// Args are further arguments of "holdfast-dev up", such as "--arg=kube-apiserver=--v=4".
	Args []string
	// Base is the folder of clusters; default: /var/lib/hf.
	Base string
	// Binary is the holdfast-dev to run; default: the result of Binary().
	Binary string
	// Replace removes an earlier cluster of that name first, running or not.
	Replace bool
	// Keep leaves the cluster running when this process ends, and on Down.
	Keep bool
	// Out gets progress; default: standard error.
	Out io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	record *layout.Record
	binary string
	base   string
	// child is the attached holdfast-dev, with which the cluster ends; nil for a kept cluster.
	child *exec.Cmd
	stdin io.Closer
}

// Binary returns the holdfast-dev binary: HOLDFAST_DEV_BIN, otherwise bin/holdfast-dev of this source tree.
func Binary() (string, error) {
	path := os.Getenv("HOLDFAST_DEV_BIN")
	if path == "" {
		_, here, _, ok := runtime.Caller(0)
		if !ok {
			return "", errors.New("set HOLDFAST_DEV_BIN to the holdfast-dev binary")
		}
		path = filepath.Join(filepath.Dir(here), "..", "..", "bin", "holdfast-dev")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("finding holdfast-dev: %w; build it with: make holdfast-dev", err)
	}
	return path, nil
}

// Start starts a cluster that ends with the test. If this machine or user cannot run one, it skips the test with a clear message.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: real kubelets need Linux and root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	c, err := Up(ctx, o)
	if err != nil {
		t.Fatalf("starting a dev cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Down(); err != nil {
			t.Errorf("stopping the dev cluster: %v", err)
		}
	})
	return c
}

// Running reports whether a cluster of that name is up, starting or stopping. An empty base means the default.
func Running(base, name string) bool {
	o := withDefaults(Options{Base: base, Name: name})
	record, err := layout.ReadRecord(filepath.Join(o.Base, o.Name))
	return err == nil && host.Alive(record.Supervisor)
}

// Up starts a cluster and waits until it is ready. If ctx ends first, Up removes what was started.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	binary := o.Binary
	if binary == "" {
		var err error
		if binary, err = Binary(); err != nil {
			return nil, err
		}
	}
	o = withDefaults(o)
	if o.Replace {
		if _, err := output(exec.CommandContext(ctx, binary, "down", "--name", o.Name, "--dir", o.Base)); err != nil {
			return nil, fmt.Errorf("removing what an earlier cluster %s left: %w", o.Name, err)
		}
	}
	c := &Cluster{binary: binary, base: o.Base}
	args := append([]string{
		"up", "--name", o.Name, "--dir", o.Base, fmt.Sprintf("--nodes=%d", o.Nodes), fmt.Sprintf("--sim-nodes=%d", o.SimNodes),
	}, o.Args...)
	var err error
	if o.Keep {
		err = c.run(ctx, o, args)
	} else {
		err = c.attach(ctx, o, append(args, "--attached"))
	}
	if err != nil {
		return nil, err
	}
	if c.record, err = layout.ReadRecord(filepath.Join(o.Base, o.Name)); err != nil {
		return nil, errors.Join(err, c.Down())
	}
	return c, nil
}

// run starts a cluster that outlives this process.
func (c *Cluster) run(ctx context.Context, o Options, args []string) error {
	up := exec.CommandContext(ctx, c.binary, args...)
	up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	up.Stderr = o.Out
	up.Cancel = func() error { return up.Process.Signal(syscall.SIGTERM) } // it removes what it created
	if err := up.Run(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s up: %w", c.binary, err))
	}
	return nil
}

// attach starts a cluster that ends with this process, however it ends.
func (c *Cluster) attach(ctx context.Context, o Options, args []string) error {
	c.child = exec.Command(c.binary, args...)
	c.child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C must reach only this process, which then stops the child in order
	c.child.Stderr = o.Out
	stdout, err := c.child.StdoutPipe()
	if err != nil {
		return err
	}
	if c.stdin, err = c.child.StdinPipe(); err != nil {
		return err
	}
	if err := c.child.Start(); err != nil {
		return fmt.Errorf("starting %s: %w; build it with: make holdfast-dev", c.binary, err)
	}
	ready := make(chan bool, 1)
	go func() { // the first line comes when the cluster is ready
		n, _ := stdout.Read(make([]byte, 1))
		ready <- n == 1
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case ok := <-ready:
		if !ok {
			return errors.Join(errors.New("holdfast-dev up ended; see its output above"), c.Down())
		}
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), c.child.Process.Signal(syscall.SIGTERM), c.child.Wait())
	}
}

func withDefaults(o Options) Options {
	if o.Name == "" {
		o.Name = fmt.Sprintf("t%d-%d", os.Getpid()%100000, time.Now().UnixNano()/1000%10000)
	}
	if o.Nodes == 0 && o.SimNodes == 0 {
		o.Nodes = 1
	}
	if o.Base == "" {
		o.Base = host.DefaultBase
	}
	if o.Out == nil {
		o.Out = os.Stderr
	}
	return o
}

// Down stops the cluster and waits until nothing of it is left. A kept cluster stays.
func (c *Cluster) Down() error {
	if c.child == nil {
		return nil
	}
	return errors.Join(c.stdin.Close(), c.child.Wait())
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.record.Spec.Name }

// Spec is the cluster's layout: paths, addresses and names.
func (c *Cluster) Spec() *layout.Spec { return &c.record.Spec }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.record.Spec.Kubeconfig() }

// Config connects as administrator, without the small default rate limit of clients.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 5000, 10000
	return config, nil
}

// Kubectl runs kubectl of the cluster's version and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlIn(ctx, "", args...)
}

// KubectlIn is Kubectl with a standard input, such as a manifest for "apply -f -".
func (c *Cluster) KubectlIn(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.record.Spec.BinDir(), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// StopProgram ends a program of the control plane, such as kube-apiserver, at once and keeps it down; StartProgram ends that.
func (c *Cluster) StopProgram(name string) error { return host.StopProgram(c.record, name) }

// StartProgram lets a stopped program of the control plane start again.
func (c *Cluster) StartProgram(name string) error { return host.StartProgram(c.record, name) }

// Run runs a program of this machine for which the cluster's Service names resolve.
func (c *Cluster) Run(ctx context.Context, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, c.binary, append([]string{"run", "--name", c.Name(), "--dir", c.base, "--"}, args...)...))
}

func output(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return out.String(), nil
}
