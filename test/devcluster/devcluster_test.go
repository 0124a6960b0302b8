package devcluster_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/host"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/simnode"
)

// TestCluster checks one cluster in many parts; their order matters only for those that break things, which come last.
func TestCluster(t *testing.T) {
	t.Parallel()
	var rec *layout.Record
	t.Cleanup(func() { // runs after the one that stops the cluster
		if rec != nil {
			nothingLeft(t, rec)
		}
	})
	c := devcluster.Start(t, devcluster.Options{Nodes: 2})
	var err error
	if rec, err = layout.ReadRecord(c.Spec().Dir); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, c)
	w.loadBase()
	w.apply(workload)
	t.Run("pod on each node", w.podOnEachNode)
	t.Run("logs and exec", w.logsAndExec)
	t.Run("limits and memory volume", w.limits)
	t.Run("kernel log per node", w.kernelLog)
	t.Run("names and addresses", w.namesAndAddresses)
	t.Run("restricted pod imports torch", w.python)
	t.Run("shared folder", w.shared)
	t.Run("devices", w.devices)
	var second *devcluster.Cluster
	t.Run("both", func(t *testing.T) { // most of it is waiting
		t.Run("second cluster", func(t *testing.T) {
			t.Parallel()
			second = w.secondCluster(t)
		})
		t.Run("first cluster", func(t *testing.T) {
			t.Parallel()
			t.Run("cut and mended cable", w.cutAndMend)
			t.Run("node killed and revived", w.killAndRevive)
			t.Run("kubelet and node die", w.powerOff)
		})
	})
	t.Run("second cluster, killed", func(t *testing.T) { w.killed(t, second) })
	t.Run("shared folder is taken back", w.sharedTakenBack)
}

// TestAttachedClusterDiesWithItsOwner kills "up" itself: all processes must end, and the next removal must clean up the rest.
func TestAttachedClusterDiesWithItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: real kubelets need Linux and root")
	}
	t.Parallel()
	binary, err := devcluster.Binary()
	if err != nil {
		t.Fatal(err)
	}
	const name = "tkill"
	cmd := exec.Command(binary, "up", "--attached", "--nodes", "1", "--name", name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the cluster did not become ready: %v", err)
	}
	rec, err := layout.ReadRecord(filepath.Join(host.DefaultBase, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually.Succeeds(t, "the cluster's processes to end", func() error {
		if host.Alive(rec.Supervisor) {
			return fmt.Errorf("supervisor %d lives", rec.Supervisor.PID)
		}
		return nil
	})
	down(t, binary, name)
	nothingLeft(t, rec)
}

type world struct {
	c      *devcluster.Cluster
	ctx    context.Context
	client kubernetes.Interface
	t      *testing.T
}

func newWorld(t *testing.T, c *devcluster.Cluster) *world {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &world{c: c, ctx: t.Context(), client: client, t: t}
}

// loadBase builds and loads the training base image as a user would.
func (w *world) loadBase() {
	w.t.Helper()
	binary, err := devcluster.Binary()
	if err != nil {
		w.t.Fatal(err)
	}
	archive := filepath.Join(w.t.TempDir(), "base.tar")
	for _, args := range [][]string{{"build", "--base", "--output", archive}, {"load", archive, "--name", w.c.Name()}} {
		if out, err := exec.Command(binary, append([]string{"image"}, args...)...).CombinedOutput(); err != nil {
			w.t.Fatalf("image %v: %v: %s", args, err, out)
		}
	}
}

func (w *world) apply(manifest string) {
	w.t.Helper()
	if _, err := w.c.KubectlIn(w.ctx, manifest, "apply", "-f", "-"); err != nil {
		w.t.Fatal(err)
	}
}

// pods waits until the pods of an app are Ready and returns them by node.
func (w *world) pods(t *testing.T, namespace, app string, want int) map[string]corev1.Pod {
	t.Helper()
	out := map[string]corev1.Pod{}
	eventually.Succeeds(t, fmt.Sprintf("%d pods of %s", want, app), func() error {
		list, err := w.client.CoreV1().Pods(namespace).List(w.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		clear(out)
		for _, p := range list.Items {
			for _, cond := range p.Status.Conditions {
				if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
					out[p.Spec.NodeName] = p
				}
			}
		}
		if len(out) != want {
			return fmt.Errorf("%d of %d are Ready", len(out), want)
		}
		return nil
	})
	return out
}

func (w *world) exec(t *testing.T, p corev1.Pod, script string) string {
	t.Helper()
	out, err := w.c.Kubectl(w.ctx, "exec", "-n", p.Namespace, p.Name, "--", "bash", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func (w *world) podOnEachNode(t *testing.T) {
	pods := w.pods(t, "default", "probe", 2)
	for i, n := range w.c.Nodes() {
		_, cidr, err := net.ParseCIDR(w.c.Spec().NodePodCIDR(i))
		if err != nil {
			t.Fatal(err)
		}
		p := pods[n.Name]
		if ip := net.ParseIP(p.Status.PodIP); !cidr.Contains(ip) {
			t.Errorf("pod on %s has address %s, want one of %s", n.Name, ip, cidr)
		}
	}
}

func (w *world) logsAndExec(t *testing.T) {
	for node, p := range w.pods(t, "default", "probe", 2) {
		logs, err := w.c.Kubectl(w.ctx, "logs", p.Name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(logs) != "hello from "+node {
			t.Errorf("the log on %s is %q", node, logs)
		}
		if got := w.exec(t, p, "id -u; uname -n"); got != "1000\n"+p.Name {
			t.Errorf("exec on %s says %q", node, got)
		}
	}
}

func (w *world) limits(t *testing.T) {
	p := w.pods(t, "default", "probe", 2)["n1"]
	got := w.exec(t, p, `stat -f -c %T /mem; cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max`)
	if got != "tmpfs\n134217728" {
		t.Errorf("memory volume and limit are %q", got)
	}
	if out, err := w.c.Kubectl(w.ctx, "exec", p.Name, "--", "bash", "-c", "head -c 40M /dev/zero > /mem/x"); err == nil {
		t.Errorf("40 MiB went into a memory volume of 32 MiB: %s", out)
	}
}

func (w *world) kernelLog(t *testing.T) {
	pods := w.pods(t, "default", "kmsg", 2)
	for _, n := range w.c.Nodes() {
		if err := n.LogKernel("<3>log of " + n.Name); err != nil {
			t.Fatal(err)
		}
	}
	for node, p := range pods {
		got := w.exec(t, p, `timeout 60 grep -m 1 -o "^3,.*log of .*" /host/kmsg`)
		if !strings.HasPrefix(got, "3,") || !strings.HasSuffix(got, ";log of "+node) {
			t.Errorf("the pod on %s reads %q", node, got)
		}
		if got := w.exec(t, p, "cat /host/sys/class/net/eth0/address"); got == "" {
			t.Errorf("the pod on %s does not see its node's link", node)
		}
	}
	if err := w.c.Node("n1").LogKernel("two\nlines"); err == nil {
		t.Error("two lines became one record")
	}
}

// bootID is the boot id in the status of a node.
func (w *world) bootID(t *testing.T, node string) string {
	t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(w.ctx, node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Status.NodeInfo.BootID
}

func (w *world) namesAndAddresses(t *testing.T) {
	web := w.pods(t, "train", "web", 1)
	probes := w.pods(t, "default", "probe", 2)
	svc, err := w.client.CoreV1().Services("train").Get(w.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ask := &http.Client{Timeout: 5 * time.Second}
	eventually.Succeeds(t, "the Service's address from the machine", func() error {
		resp, err := ask.Get("http://" + svc.Spec.ClusterIP)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	for _, name := range []string{"web.train.svc.cluster.local", "kubernetes.default"} {
		out, err := w.c.Run(w.ctx, "getent", "hosts", name)
		if err != nil || !strings.HasPrefix(out, w.c.Spec().Supernet()[:6]) {
			t.Errorf("%s on the machine is %q, %v", name, out, err)
		}
	}
	for node, p := range probes {
		script := `exec 3<>/dev/tcp/web.train/80 && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && head -1 <&3; exec 4<>/dev/tcp/kubernetes.default/443 && echo api`
		got := strings.ReplaceAll(w.exec(t, p, script), "\r", "")
		if !strings.HasSuffix(got, "200 OK\napi") {
			t.Errorf("Services from the pod on %s: %q", node, got)
		}
		if got := w.exec(t, p, "getent hosts one.peers.train.svc.cluster.local"); !strings.HasPrefix(got, web[webNode(web)].Status.PodIP+" ") {
			t.Errorf("the pod's host name is %q on %s", got, node)
		}
	}
}

func webNode(pods map[string]corev1.Pod) string {
	for node := range pods {
		return node
	}
	return ""
}

func (w *world) python(t *testing.T) {
	for _, p := range w.pods(t, "train", "web", 1) {
		got := w.exec(t, p, `/opt/holdfast-python/venv/bin/python3 -c 'import torch, ssl, sqlite3, lzma, bz2, ctypes; print(int(torch.ones(3).sum()))'`)
		if got != "3" {
			t.Errorf("torch says %q", got)
		}
		if out, err := w.c.Kubectl(w.ctx, "exec", "-n", "train", p.Name, "--", "touch", "/opt/holdfast-python/x"); err == nil {
			t.Errorf("the pod may write to the shared folder: %s", out)
		}
	}
	_, err := w.c.KubectlIn(w.ctx, strings.Replace(privileged, "namespace: default", "namespace: train", 1), "apply", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("a pod with hostPath was admitted in a restricted namespace: %v", err)
	}
}

// shared: other nodes read what one node writes; no root is needed.
func (w *world) shared(t *testing.T) {
	pods := w.pods(t, "train", "writer", 2)
	w.exec(t, pods["n1"], "mkdir /shared/dir && echo from n1 > /shared/dir/x && chmod 600 /shared/dir/x")
	if got := w.exec(t, pods["n2"], "cat /shared/dir/x && echo from n2 >> /shared/dir/x && mv /shared/dir/x /shared/y"); got != "from n1" {
		t.Errorf("n2 reads %q", got)
	}
	if got := w.exec(t, pods["n1"], "cat /shared/y"); got != "from n1\nfrom n2" {
		t.Errorf("n1 reads %q", got)
	}
}

// sharedTakenBack: the folder outlives the nodes' power and ends with its claim.
func (w *world) sharedTakenBack(t *testing.T) {
	path, err := w.c.SharedPath(w.ctx, "train", "shared")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.exec(t, w.pods(t, "train", "writer", 2)["n2"], "cat /shared/y"); got != "from n1\nfrom n2" {
		t.Errorf("after n2 was off it reads %q", got)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if _, err := w.c.Kubectl(w.ctx, "delete", "-n", "train", "daemonset/writer", "persistentvolumeclaim/shared", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the folder to be gone", func() error {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there (%v)", path, err)
		}
		return nil
	})
}

func (w *world) devices(t *testing.T) {
	n := w.c.Node("n2")
	want := func(count int64) {
		t.Helper()
		eventually.Succeeds(t, fmt.Sprintf("%d devices on n2", count), func() error {
			got, err := w.client.CoreV1().Nodes().Get(w.ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			q := got.Status.Allocatable[layout.GPUResource]
			if q.Value() != count {
				return fmt.Errorf("there are %d", q.Value())
			}
			return nil
		})
	}
	want(2)
	if err := n.SetSickGPUs(n.GPU(1)); err != nil {
		t.Fatal(err)
	}
	want(1)
	if err := n.SetSickGPUs(); err != nil {
		t.Fatal(err)
	}
	want(2)
	p := w.pods(t, "default", "probe", 2)["n2"]
	if got := w.exec(t, p, "echo $NVIDIA_VISIBLE_DEVICES"); !strings.HasPrefix(got, "GPU-n2-") {
		t.Errorf("the container's device is %q", got)
	}
}

// secondCluster starts another cluster beside the first, with simulated nodes.
func (w *world) secondCluster(t *testing.T) *devcluster.Cluster {
	c, err := devcluster.Up(w.ctx, devcluster.Options{Name: "tsecond", Nodes: 1, SimNodes: 30})
	if err != nil {
		t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Down() }) // killed checks whether that leaves anything
	w2 := newWorld(t, c)
	w2.apply(simulated)
	w2.pods(t, "default", "sim", 30)
	w2.silence(t, c.Spec().SimNodeName(0), c.Spec().SimNodeName(1))
	return c
}

// killed kills all processes of the second cluster.
func (w *world) killed(t *testing.T, c *devcluster.Cluster) {
	if c == nil {
		t.Skip("there is no second cluster")
	}
	rec, err := layout.ReadRecord(c.Spec().Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Kill(rec.Supervisor); err != nil {
		t.Fatal(err)
	}
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, rec)
	w.pods(t, "default", "probe", 2) // the first one is unaffected
}

// silence: kwok no longer renews the lease of a simulated node whose label changed, while its neighbour's is renewed.
func (w *world) silence(t *testing.T, silent, other string) {
	renewed := func(node string) time.Time {
		l, err := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(w.ctx, node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Spec.RenewTime.Time
	}
	nextRenewal := func() {
		before := renewed(other)
		eventually.Succeeds(t, "a lease to be renewed", func() error {
			if !renewed(other).After(before) {
				return fmt.Errorf("%s's is of %s", other, before)
			}
			return nil
		})
	}
	if _, err := w.c.Kubectl(w.ctx, "label", "--overwrite", "node", silent, simnode.AliveLabel+"=false"); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the lease to be no longer renewed", func() error { // kwok reacts to the label with a delay
		last := renewed(silent)
		nextRenewal()
		nextRenewal()
		if now := renewed(silent); now.After(last) {
			return fmt.Errorf("the silent node's was renewed at %s, after %s", now, last)
		}
		return nil
	})
}

func (w *world) cutAndMend(t *testing.T) {
	n, other := w.c.Node("n2"), w.c.Node("n1")
	dial := func(n *devcluster.Node) error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(n.IP(), "10250"), 500*time.Millisecond)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	if err := dial(n); err != nil {
		t.Fatalf("before the cut: %v", err)
	}
	if err := n.Cut(w.ctx); err != nil {
		t.Fatal(err)
	}
	if err := dial(n); err == nil {
		t.Error("the node answers although its cable is cut")
	}
	if out, err := n.Exec(w.ctx, "bash", "-c", "timeout 1 bash -c 'exec 3<>/dev/tcp/"+w.c.Spec().ControlIP()+"/6443'"); err == nil {
		t.Errorf("the node reaches the API server although its cable is cut: %s", out)
	}
	eventually.Succeeds(t, "the other node, whose cable is whole", func() error {
		_, err := other.Exec(w.ctx, "bash", "-c", "timeout 20 bash -c 'exec 3<>/dev/tcp/"+w.c.Spec().ControlIP()+"/6443'")
		return errors.Join(dial(other), err)
	})
	if err := n.Mend(w.ctx); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the mended node", func() error { return dial(n) })
}

// killAndRevive: all that Kubernetes runs on the node ends, but the machine itself responds; afterwards it works as before.
func (w *world) killAndRevive(t *testing.T) {
	n := w.c.Node("n2")
	before := w.pods(t, "default", "probe", 2)["n2"]
	proxy, err := n.Exec(w.ctx, "pgrep", "-f", "^kube-proxy ")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the end of the killed processes", func() error { // on a busy machine this takes a moment
		out, err := n.Exec(w.ctx, "ps", "-eo", "args", "--no-headers")
		for line := range strings.Lines(out) {
			if strings.Contains(line, "<defunct>") { // it has ended, and its parent has not reaped it
				continue
			}
			for _, gone := range []string{"kubelet --", "containerd --config", "containerd-shim", "sleep", "/pause"} {
				if strings.Contains(line, gone) {
					err = errors.Join(err, fmt.Errorf("%s runs on the killed node:\n%s", gone, out))
				}
			}
		}
		return err
	})
	if again, err := n.Exec(w.ctx, "pgrep", "-f", "^kube-proxy "); err != nil || again != proxy {
		t.Errorf("kube-proxy was process %s, now %s (%v): the network has changed", proxy, again, err)
	}
	eventually.Succeeds(t, "the control plane to miss the node", func() error {
		got, err := w.client.CoreV1().Nodes().Get(w.ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is Ready")
	})
	if out, err := n.Exec(w.ctx, "pgrep", "-f", "^kubelet "); err == nil {
		t.Errorf("the kubelet was started again: %s", out)
	}
	if err := n.Revive(); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the pod to run again after the node was revived", func() error {
		now := w.pods(t, "default", "probe", 2)["n2"]
		if now.UID == before.UID && now.Status.ContainerStatuses[0].ContainerID == before.Status.ContainerStatuses[0].ContainerID {
			return errors.New("it shows the former container")
		}
		return nil
	})
}

func (w *world) powerOff(t *testing.T) {
	n := w.c.Node("n2")
	if err := n.KillKubelet(); err != nil {
		t.Fatal(err)
	}
	booted := w.bootID(t, n.Name)
	if booted == "" || booted == w.bootID(t, "n1") {
		t.Errorf("n2's boot id is %q, that of n1 %q", booted, w.bootID(t, "n1"))
	}
	started := func(p corev1.Pod) string { return p.Status.ContainerStatuses[0].ContainerID }
	before := started(w.pods(t, "default", "probe", 2)["n2"])
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the node to be off", func() error {
		if _, err := n.Exec(w.ctx, "true"); err == nil {
			return errors.New("it runs commands")
		}
		return nil
	})
	eventually.Succeeds(t, "its kernel to log nothing more", func() error { // its processes may still be ending
		if n.LogKernel("x") == nil {
			return errors.New("it logs")
		}
		return nil
	})
	if err := n.PowerOn(); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, "the pod to run again after the node came back", func() error {
		if now := started(w.pods(t, "default", "probe", 2)["n2"]); now == before {
			return errors.New("it shows the former container")
		}
		return nil
	})
	eventually.Succeeds(t, "the node's new boot id", func() error {
		if w.bootID(t, n.Name) == booted {
			return errors.New("it shows the former one")
		}
		return nil
	})
}

func down(t *testing.T, binary, name string) {
	t.Helper()
	if out, err := exec.Command(binary, "down", "--name", name).CombinedOutput(); err != nil {
		t.Fatalf("down: %v: %s", err, out)
	}
}

// nothingLeft checks that no trace of a removed cluster is on the machine.
func nothingLeft(t *testing.T, rec *layout.Record) {
	t.Helper()
	for _, path := range append([]string{rec.Spec.Dir}, rec.Cgroups...) {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left (%v)", path, err)
		}
	}
	for _, link := range rec.Links {
		if _, err := net.InterfaceByName(link); err == nil {
			t.Errorf("link %s is left", link)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), rec.Spec.Dir+"/") {
		t.Error("a mount is left below " + rec.Spec.Dir)
	}
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range cmdlines {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), rec.Spec.Dir+"\x00") {
			t.Errorf("a process is left: %s", strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
}
