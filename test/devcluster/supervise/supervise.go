// Package supervise is process 1 of a cluster, in process and network namespaces of its own. The supervisor starts the
// programs of the control plane, the nodes and the router between the nodes as its children. When it dies, the kernel
// kills all of them.
package supervise

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"holdfast.dev/holdfast/test/devcluster/dns"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/simnode"
	"holdfast.dev/holdfast/test/devcluster/wire"
)

// startTimeout bounds a whole start on a slow, busy machine.
const startTimeout = 3 * time.Minute

// Run runs the cluster until the process ends. It first waits for an order, which comes once the cluster's record is written and its link
// to the machine exists.
func Run(s *layout.Spec, orders *os.File) error {
	began := time.Now()
	told := bufio.NewScanner(orders)
	if !told.Scan() {
		return errors.New("the process that started the cluster ended before it was recorded")
	}
	if told.Text() == layout.GoWithMe {
		go func() {
			told.Scan()
			fmt.Fprintln(os.Stderr, "supervisor: the process that started the cluster has ended")
			os.Exit(1)
		}()
	}
	sv := &supervisor{spec: s, began: began}
	if err := sv.start(); err != nil {
		sv.say(layout.Broken, err.Error())
		return err
	}
	sv.say(layout.Ready, "")
	select {}
}

type supervisor struct {
	spec   *layout.Spec
	began  time.Time
	client kubernetes.Interface
}

func (sv *supervisor) say(phase layout.Phase, message string) {
	st := layout.Status{Phase: phase, Message: message, Since: time.Now()}
	if phase == layout.Ready {
		st.ReadySeconds = time.Since(sv.began).Seconds()
	}
	if err := st.Write(sv.spec.Dir); err != nil {
		fmt.Fprintln(os.Stderr, "supervisor: writing the status:", err)
	}
	fmt.Fprintf(os.Stderr, "supervisor: %6.2fs %s %s\n", time.Since(sv.began).Seconds(), phase, message)
}

func (sv *supervisor) start() error {
	s := sv.spec
	sv.say(layout.Starting, "etcd and API server")
	if err := ownMounts(); err != nil {
		return err
	}
	if err := wire.Forward(); err != nil {
		return err
	}
	if err := wire.LoadRules(); err != nil {
		return err
	}
	for _, d := range []string{"etcd", "logs", "hold"} {
		if err := os.MkdirAll(s.Path(d), 0o700); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.Shared(), 0o755); err != nil {
		return err
	}
	if err := keep(s, etcdCommand(s)); err != nil {
		return err
	}
	deadline := time.Now().Add(startTimeout)
	if err := until(deadline, "etcd", "etcd", s, func() error { return dial("127.0.0.1:2379") }); err != nil {
		return err
	}
	if err := keep(s, apiServerCommand(s)); err != nil {
		return err
	}
	join := make(chan struct{})
	for i := range s.Nodes {
		if err := keepNode(s, i, join); err != nil {
			return err
		}
	}
	if err := sv.connect(deadline); err != nil {
		return err
	}
	close(join)
	if err := sv.controllers(); err != nil {
		return err
	}
	return sv.settle(deadline)
}

// connect waits for the API server.
func (sv *supervisor) connect(deadline time.Time) error {
	s := sv.spec
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	if sv.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	url := s.APIURL() + "/readyz"
	probe := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a readiness probe; the clients verify
	}}
	defer probe.CloseIdleConnections()
	return until(deadline, "the API server", "kube-apiserver", s, func() error {
		resp, err := probe.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz says %s", resp.Status)
		}
		return nil
	})
}

// controllers starts everything that needs an API server.
func (sv *supervisor) controllers() error {
	s := sv.spec
	sv.say(layout.Starting, "controllers, nodes and DNS")
	if err := os.WriteFile(s.Path("pki", "proxy.json"), []byte(routerProxyConfig(s)), 0o644); err != nil {
		return err
	}
	for _, c := range []command{controllerManagerCommand(s), schedulerCommand(s), routerProxyCommand(s)} {
		if err := keep(s, c); err != nil {
			return err
		}
	}
	if err := bootstrap(context.Background(), sv.client, s); err != nil {
		return fmt.Errorf("creating the cluster's first objects: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Path("pki", "dns.kubeconfig"))
	if err != nil {
		return err
	}
	if err := dns.Start(context.Background(), config, layout.ClusterDomain, s.ControlIP()+":53"); err != nil {
		return fmt.Errorf("starting the cluster DNS: %w", err)
	}
	if s.Sim.Nodes > 0 {
		if err := sv.simulate(); err != nil {
			return err
		}
	}
	provideVolumes(context.Background(), sv.client, s)
	return nil
}

// simulate creates the simulated nodes and runs kwok for them from then on.
func (sv *supervisor) simulate() error {
	config, err := clientcmd.BuildConfigFromFlags("", sv.spec.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 5000, 10000
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	sv.say(layout.Starting, fmt.Sprintf("%d simulated nodes", sv.spec.Sim.Nodes))
	if err := simnode.Make(context.Background(), client, sv.spec); err != nil {
		return fmt.Errorf("making simulated nodes: %w", err)
	}
	kwok, err := simnode.KwokConfig()
	if err != nil {
		return err
	}
	path := sv.spec.Path("kwok.yaml")
	if err := os.WriteFile(path, []byte(kwok), 0o644); err != nil {
		return err
	}
	return keep(sv.spec, command{"kwok", simnode.KwokArgs(sv.spec, path)})
}

// settle waits until pods can run and names resolve.
func (sv *supervisor) settle(deadline time.Time) error {
	s := sv.spec
	ctx := context.Background()
	waiting := 0
	err := until(deadline, "nodes", "supervisor", s, func() error {
		var err error
		waiting, err = nodesReady(ctx, sv.client, s)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s\n%s", err, tail(s.Log(s.NodeName(waiting))), tail(s.NodePath(waiting, "log", "kubelet.log")))
	}
	if err := until(deadline, "simulated nodes", "kwok", s, func() error {
		have, err := simnode.Leases(ctx, sv.client, s)
		if err == nil && have < s.Sim.Nodes {
			err = fmt.Errorf("%d of %d have a lease", have, s.Sim.Nodes)
		}
		return err
	}); err != nil {
		return err
	}
	sv.say(layout.Starting, "Service addresses and names")
	if err := until(deadline, "the Service address of the API server", "kube-proxy", s, func() error {
		return dial(s.KubernetesServiceIP() + ":443")
	}); err != nil {
		return err
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.DNSIP()+":53")
	}}
	return until(deadline, "the cluster DNS", "supervisor", s, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+layout.ClusterDomain+".")
		return err
	})
}

// ownMounts hides the machine's /run from the control plane, and mounts a /proc of its own process namespace.
func ownMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("leaving the machine's mounts: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mounting /run: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

func dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// until calls check until it succeeds; its last error is part of the error.
func until(deadline time.Time, what, log string, s *layout.Spec, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for %s: %w; %s", what, err, tail(s.Log(log)))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// tail is the end of a log file; the file may already be gone.
func tail(path string) string {
	const most = 1500
	b, err := os.ReadFile(path)
	if err != nil {
		return "there is no " + path
	}
	return fmt.Sprintf("%s ends with:\n%s", path, b[max(0, len(b)-most):])
}
