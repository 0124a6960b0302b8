package hostile

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/harness"
)

// calm is the state that no attack may change.
type calm struct {
	// containers has the containers of victim, controller, scheduler and node daemon, with their ids and restarts.
	containers map[string]string
	// steps is the progress of the victim's ranks at the last check.
	steps [2]int
}

func seen(ctx context.Context, t *testing.T, c *harness.Cluster) *calm {
	t.Helper()
	s := &calm{containers: containers(ctx, t, c)}
	if len(s.containers) < 7 {
		t.Fatalf("two pods of the victim, two controllers, two schedulers and a daemon are wanted: %v", s.containers)
	}
	return s
}

func containers(ctx context.Context, t *testing.T, c *harness.Cluster) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, namespace := range []string{victim, v1alpha1.Namespace, v1alpha1.NodeNamespace} {
		pods := &corev1.PodList{}
		if err := c.Client().List(ctx, pods, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			for _, s := range p.Status.ContainerStatuses {
				if !strings.HasPrefix(p.Name, "probe") {
					all[namespace+"/"+p.Name] = fmt.Sprintf("pod %s container %s restarted %d times", p.UID, s.ContainerID, s.RestartCount)
				}
			}
		}
	}
	return all
}

// same fails the test if a container was replaced, or if the victim lost a step or makes no progress.
func (s *calm) same(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	if now := containers(ctx, t, c); !maps.Equal(s.containers, now) {
		t.Errorf("containers of others changed: %v became %v", s.containers, now)
	}
	gang := &v1alpha1.Gang{}
	if err := c.Client().Get(ctx, client.ObjectKey{Namespace: victim, Name: train}, gang); err != nil {
		t.Error(err)
	} else if r := gang.Status.Run; r == nil || r.Generation != 1 || len(r.Recoveries) > 0 {
		t.Errorf("the victim's job was restarted: %+v", r)
	}
	for rank := range s.steps {
		was := s.steps[rank]
		if err := c.Until(ctx, fmt.Sprintf("rank %d of the victim goes on", rank), eventually.Timeout, func(ctx context.Context) (bool, string) {
			n, err := steps(ctx, c, rank)
			if err != nil {
				t.Fatal(err)
			}
			s.steps[rank] = n
			return n > was, fmt.Sprintf("%d steps after %d", n, was)
		}); err != nil {
			t.Error(err)
		}
	}
}

// steps is the number of steps of a victim's rank; it fails if the rank started twice, or a step is missing or repeated.
func steps(ctx context.Context, c *harness.Cluster, rank int) (int, error) {
	dir, err := c.SharedPath(ctx, victim, "logs")
	if err != nil {
		return 0, nil // the claim is not bound yet
	}
	log, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)))
	if err != nil {
		return 0, nil // the rank has not started yet
	}
	done, starts := 0, 0
	for line := range strings.Lines(string(log)) { // GENERATION RANK WORD STEP
		words := strings.Fields(line)
		if len(words) != 4 || !strings.HasSuffix(line, "\n") {
			break // it is being written, and may be cut inside the number
		}
		switch step, _ := strconv.Atoi(words[3]); words[2] {
		case "start":
			starts++
		case "done":
			if done++; step != done {
				return 0, fmt.Errorf("rank %d of the victim made step %d after step %d", rank, step, done-1)
			}
		}
	}
	if starts > 1 {
		return 0, fmt.Errorf("rank %d of the victim started %d times", rank, starts)
	}
	return done, nil
}

// serves checks that jobs of other tenants are admitted and their gangs placed.
func serves(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	j := job("probe", nothing)
	j.Namespace = victim
	if err := c.Client().Create(ctx, j, client.DryRunAll); err != nil {
		t.Errorf("a job of the victim's is not admitted: %v", err)
	}
	if err := placed(ctx, c, victim, eventually.Timeout); err != nil {
		t.Error(err)
	}
}

// soon is shorter than the first exclusion of a node.
const soon = 30 * time.Second

// placed has a gang of one pod placed within a time, in a namespace with a PodGroup probe.
func placed(ctx context.Context, c *harness.Cluster, namespace string, within time.Duration) error {
	p := pod("", inGroup("probe"))
	p.GenerateName, p.Namespace = "probe-", namespace
	if err := c.Client().Create(ctx, p); err != nil {
		return err
	}
	defer func() { _ = c.Client().Delete(context.WithoutCancel(ctx), p, client.GracePeriodSeconds(0)) }()
	return c.Until(ctx, "a gang of namespace "+namespace+" is placed", within, func(ctx context.Context) (bool, string) {
		err := c.Client().Get(ctx, client.ObjectKeyFromObject(p), p)
		return p.Spec.NodeName != "", fmt.Sprintf("%v: %+v", err, p.Status.Conditions)
	})
}

// believed checks that the node's daemon reads the kernel log: it accepts from the driver the message that it did not accept from a tenant.
func believed(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	if err := c.Nodes()[0].LogKernel("<3>" + fallenOff); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, c, "the daemon believes the driver", func(ctx context.Context) (bool, string) {
		verdict, err := verdict(ctx, c)
		return err == nil && strings.Contains(verdict, `"cause":"GPUOffTheBus"`), fmt.Sprint(verdict, err)
	})
}

// well reports whether the node's daemon has no finding.
func well(c *harness.Cluster) func(context.Context) (bool, string) {
	return func(ctx context.Context) (bool, string) {
		now, err := verdict(ctx, c)
		return err == nil && strings.Contains(now, `"action":"None"`), fmt.Sprint(now, err)
	}
}

// verdict is the daemon's verdict on the node.
func verdict(ctx context.Context, c *harness.Cluster) (string, error) {
	n, err := c.Kube().CoreV1().Nodes().Get(ctx, c.Nodes()[0].Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return n.Annotations[v1alpha1.AnnotationHealth], nil
}

// peaks checks that no controller or scheduler came near its memory limit, and prints the maximum.
func peaks(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	pods := &corev1.PodList{}
	if err := c.Client().List(ctx, pods, client.InNamespace(v1alpha1.Namespace)); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		of := p.Spec.Containers[0]
		limit := of.Resources.Limits.Memory().Value()
		pid, err := c.HostPID(ctx, p.Namespace, p.Name, of.Name, 1)
		if err != nil {
			t.Error(err)
			continue
		}
		peak, err := peak(pid)
		t.Logf("%s: %d MiB of memory at most, of %d MiB", p.Name, peak>>20, limit>>20)
		if err != nil || limit == 0 || peak > limit*9/10 {
			t.Errorf("%s needed %d bytes of %d: %v", p.Name, peak, limit, err)
		}
	}
}

// peak is the maximal resident memory of a process.
func peak(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmHWM", pid)
}
