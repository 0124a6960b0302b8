package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/operators"
	"holdfast.dev/holdfast/test/trainer"
)

const (
	interpreter = "/opt/holdfast-python/venv/bin/python3"
	// last is how many steps a job makes. It pauses between them until all that the story does to it was done.
	last = 1000
	// trainLine trains, bugLine fails in the same way each time; %d is the number of pods.
	trainLine = "torchrun --nnodes=%d --nproc-per-node=1 --master-addr=none --master-port=29500 /trainer/torch_trainer.py %s %d 0.3"
	bugLine   = "torchrun --nnodes=%d --nproc-per-node=1 --master-addr=none --master-port=29500 --no-python " + interpreter +
		` -c "import os, time; os.environ['RANK'] == '1' and int('the bug of rank 1'); time.sleep(600)"`
	bugText = "the bug of rank 1"
)

// cell is the story of one kind under one scheduler.
type cell struct {
	subject
	*harness.Cluster
	scheduler string
	// job is the name of the object, and of its Gang.
	job string
	row row
	// log is the file to which the ranks write what they lost: its name, and where it is on this machine once they run.
	log string
	// shape, counted and groups are what the last step of the story left.
	shape   harness.Shape
	counted string
	groups  []string
}

// testStory plays the story with each kind under each scheduler, one after the other: each has the cluster for itself.
func testStory(ctx context.Context, t *testing.T, w *world) {
	undisturbed := map[int64]map[trainer.At]string{}
	for _, scheduler := range []string{volcano, ours} {
		for _, s := range subjects() {
			name := s.name + "-" + scheduler
			t.Run(name, func(t *testing.T) {
				w.needs(ctx, t, operators.Volcano, s.operator)
				p := &cell{subject: s, Cluster: w.Cluster, scheduler: scheduler, log: name + ".log"}
				p.row = row{Kind: s.name, Scheduler: scheduler, Pods: s.pods}
				p.play(ctx, t)
				if undisturbed[s.pods] == nil {
					losses, err := trainer.Undisturbed(ctx, interpreter, int(s.pods), last)
					if err != nil {
						t.Fatal(err)
					}
					undisturbed[s.pods] = losses
				}
				p.compare(t, undisturbed[s.pods])
				p.fail(ctx, t)
				p.row.write(t)
			})
			if t.Failed() {
				return // the next one would begin with what this one left
			}
		}
	}
}

// play is the story up to its end.
func (p *cell) play(ctx context.Context, t *testing.T) {
	obj := p.waits(ctx, t)
	p.rankKilled(ctx, t)
	p.nodeLost(ctx, t)
	p.nodeDrained(ctx, t)
	p.rested(ctx, t, obj)
	if err := os.WriteFile(p.log+".go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := waitFor(ctx, p.Cluster, p.resource+"/"+obj.GetName(), p.completes); err != nil {
		t.Fatal(err)
	}
	p.deleted(ctx, t, obj.GetName())
}

// apply applies the example, says what differs from it, and returns it as the API server has it.
func (p *cell) apply(ctx context.Context, t *testing.T, suffix, line string) *unstructured.Unstructured {
	t.Helper()
	obj, differs, err := p.object(ctx, p.Cluster, p.scheduler, suffix, line)
	if err != nil {
		t.Fatal(err)
	}
	if suffix == "" {
		p.Say("  differs from the example:\n%s", differs)
	}
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.KubectlIn(ctx, string(text), "apply", "--server-side", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	p.Say("  %s", strings.TrimSpace(out))
	return p.live(ctx, t, obj.GetName())
}

func (p *cell) live(ctx context.Context, t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(p.kind)
	if err := p.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// waits applies the job while two of three nodes are held, demands that nothing is placed and why, and frees them.
func (p *cell) waits(ctx context.Context, t *testing.T) *unstructured.Unstructured {
	unblock, err := p.Block(ctx, namespace, 2)
	if err != nil {
		t.Fatal(err)
	}
	obj := p.apply(ctx, t, "", fmt.Sprintf(trainLine, p.pods, "/"+shared+"/"+p.log, last))
	p.job = obj.GetName()
	reasons := []string{v1alpha1.ReasonInsufficientNodes}
	if p.scheduler == volcano {
		reasons = []string{v1alpha1.ReasonVolcanoQueued, v1alpha1.ReasonVolcanoUnschedulable}
	}
	var why *metav1.Condition
	until(ctx, t, p.Cluster, "the Gang says why it waits", func(ctx context.Context) (bool, string) {
		g, err := p.Gang(ctx, namespace, obj.GetName())
		if err != nil {
			return false, err.Error()
		}
		why = meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionPlaced)
		return why != nil && why.Status == metav1.ConditionFalse && slices.Contains(reasons, why.Reason) &&
			!strings.Contains(why.Message, "no reason yet"), fmt.Sprintf("%+v", why)
	})
	until(ctx, t, p.Cluster, "the same stands on the object", func(ctx context.Context) (bool, string) {
		return p.HasEvent(ctx, namespace, obj.GetKind(), obj.GetName(), why.Reason, "")
	})
	bound := func(ctx context.Context) (n int, seen string) {
		members, _, err := p.Members(ctx, namespace, obj.GetName())
		for _, m := range members {
			if m.Spec.NodeName != "" {
				n++
			}
		}
		return n, fmt.Sprintf("%d of %d pods are bound, %v", n, len(members), err)
	}
	if err := p.During(ctx, "nothing is placed", 5*time.Second, func(ctx context.Context) (bool, string) {
		n, seen := bound(ctx)
		return n == 0, seen
	}); err != nil {
		t.Error(err)
	}
	p.Say("  nothing is placed: %s: %s", why.Reason, why.Message)
	p.row.Waits = why.Reason
	if err := unblock(ctx); err != nil {
		t.Fatal(err)
	}
	freed := time.Now()
	until(ctx, t, p.Cluster, "all pods are placed", func(ctx context.Context) (bool, string) {
		n, seen := bound(ctx)
		return n == int(p.pods), seen
	})
	p.row.Placed = seconds(time.Since(freed))
	p.shape = p.trains(ctx, t, 1)
	folder, err := p.SharedPath(ctx, namespace, shared)
	if err != nil {
		t.Fatal(err)
	}
	p.log = filepath.Join(folder, p.log)
	p.counted, p.groups = p.counts(ctx, t), p.podGroups(ctx, t)
	if gangs := p.gangs(ctx, t); len(gangs) != 1 {
		t.Errorf("%d gangs, want one", len(gangs))
	}
	p.Say("  all placed after %.1f s: %+v; %v", p.row.Placed, p.shape.Assignments, p.groups)
	return p.live(ctx, t, obj.GetName())
}

func (p *cell) trains(ctx context.Context, t *testing.T, generation int64) harness.Shape {
	t.Helper()
	s, err := p.Trains(ctx, namespace, p.job, generation)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// suffers does something to the job, waits until all ranks train again in the next generation, and returns how long that took.
func (p *cell) suffers(ctx context.Context, t *testing.T, what string, cause func() error) float64 {
	t.Helper()
	began := time.Now()
	if err := cause(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var took time.Duration
	until(ctx, t, p.Cluster, what+": all ranks step again", func(context.Context) (bool, string) {
		text, err := os.ReadFile(p.log)
		if err != nil {
			return false, err.Error()
		}
		_, newest, err := trainer.Losses(string(text))
		stepped := 0
		for _, generation := range newest {
			if generation > p.shape.Generation {
				stepped++
			}
		}
		took = time.Since(began)
		return stepped == int(p.pods), fmt.Sprintf("%d of %d after generation %d, %v", stepped, p.pods, p.shape.Generation, err)
	})
	return seconds(took)
}

// after demands that the pods of some slots were replaced, all others kept, and that the kind's own controller counted nothing.
func (p *cell) after(ctx context.Context, t *testing.T, what string, replaced ...int) {
	t.Helper()
	now := p.trains(ctx, t, p.shape.Generation+1)
	if err := p.shape.Became(now, replaced...); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if counted := p.counts(ctx, t); counted != p.counted {
		t.Errorf("%s: the kind's own controller counted %s, before %s", what, counted, p.counted)
	}
	if groups := p.podGroups(ctx, t); !slices.Equal(groups, p.groups) {
		t.Errorf("%s: PodGroups %v became %v", what, p.groups, groups)
	}
	p.shape = now
}

// recovery is the newest one on the Gang.
func (p *cell) recovery(ctx context.Context, t *testing.T) v1alpha1.Recovery {
	t.Helper()
	g, err := p.Gang(ctx, namespace, p.job)
	if err != nil || len(g.Status.Run.Recoveries) == 0 {
		t.Fatalf("the Gang has no recovery: %v", err)
	}
	return g.Status.Run.Recoveries[len(g.Status.Run.Recoveries)-1]
}

// rankKilled: the process of the last rank is killed, and its container and all others stay.
func (p *cell) rankKilled(ctx context.Context, t *testing.T) {
	t.Helper()
	pod := p.shape.Assignments[p.pods-1].Pod
	p.row.Rank = p.suffers(ctx, t, "rank killed", func() error {
		return p.Signal(ctx, namespace, pod, p.container(ctx, t, pod), syscall.SIGKILL, func(process harness.Process) bool {
			return process.Inside != 1 && slices.Contains(process.Args, "/trainer/torch_trainer.py") && strings.Contains(process.Args[0], "python")
		})
	})
	p.after(ctx, t, "rank killed")
	p.Say("  rank killed: first step after %.1f s", p.row.Rank)
}

// container is the one of a pod that trains.
func (p *cell) container(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	pod, err := p.Kube().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod.Spec.Containers[0].Name
}

// nodeLost: everything on a node is killed at once. The first node, which runs all controllers, is spared.
func (p *cell) nodeLost(ctx context.Context, t *testing.T) {
	t.Helper()
	p.stored(ctx, t)
	i := slices.IndexFunc(p.shape.Assignments, func(a harness.Assignment) bool { return a.Node != p.Nodes()[0].Name })
	node := p.shape.Assignments[i].Node
	slots := p.shape.On(node)
	p.row.Node = p.suffers(ctx, t, "node lost", p.Node(node).Kill)
	p.after(ctx, t, "node lost", slots...)
	if on := p.shape.On(node); len(on) > 0 {
		t.Errorf("slots %v are on %s, which was lost", on, node)
	}
	r := p.recovery(ctx, t)
	p.row.NodeSteps = ptr.Deref(r.StepsRecomputed, -1)
	p.Say("  node %s of slots %v lost: first step after %.1f s, %d steps again", node, slots, p.row.Node, p.row.NodeSteps)
	if r.RestoreStep == 0 {
		t.Errorf("training began again: %+v", r)
	}
	if err := p.Node(node).Revive(); err != nil {
		t.Fatal(err)
	}
	if err := p.Well(ctx, node); err != nil {
		t.Fatal(err)
	}
}

// stored waits until a step of the present generation is in storage.
func (p *cell) stored(ctx context.Context, t *testing.T) {
	t.Helper()
	until(ctx, t, p.Cluster, "a step is in storage", func(ctx context.Context) (bool, string) {
		g, err := p.Gang(ctx, namespace, p.job)
		if err != nil {
			return false, err.Error()
		}
		d := g.Status.Run.Durable
		return d != nil && d.Generation >= p.shape.Generation, fmt.Sprintf("%+v", d)
	})
}

// nodeDrained: no step is done again.
func (p *cell) nodeDrained(ctx context.Context, t *testing.T) {
	t.Helper()
	node := p.shape.Assignments[0].Node
	slots, drained := p.shape.On(node), make(chan error, 1)
	p.row.Drain = p.suffers(ctx, t, "node drained", func() error {
		go func() {
			_, err := p.RunKubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s",
				"--pod-selector="+v1alpha1.LabelGang)
			drained <- err
		}()
		return nil
	})
	if err := <-drained; err != nil {
		t.Error(err)
	}
	p.after(ctx, t, "node drained", slots...)
	if r := p.recovery(ctx, t); ptr.Deref(r.StepsRecomputed, -1) != 0 {
		t.Errorf("a drain cost %d steps: %+v", ptr.Deref(r.StepsRecomputed, -1), r)
	}
	p.Say("  node %s of slots %v drained: first step after %.1f s", node, slots, p.row.Drain)
	if _, err := p.RunKubectl(ctx, "uncordon", node); err != nil {
		t.Fatal(err)
	}
}

// rested: the job is suspended, so that all its pods go, and goes on where it was.
func (p *cell) rested(ctx context.Context, t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	if err := p.rest(ctx, p.Cluster, obj, true); err != nil {
		t.Fatal(err)
	}
	p.empty(ctx, t, obj.GetName())
	p.row.Resume = p.suffers(ctx, t, "resumed", func() error { return p.rest(ctx, p.Cluster, obj, false) })
	now := p.trains(ctx, t, p.shape.Generation+1)
	for i, a := range now.Assignments {
		if was := p.shape.Assignments[i]; a.UID == was.UID {
			t.Errorf("pod %s outlived that its job was suspended", a.Pod)
		}
	}
	if r := p.recovery(ctx, t); r.RestoreStep == 0 || ptr.Deref(r.StepsRecomputed, -1) != 0 {
		t.Errorf("resumed from step %d, %d steps again", r.RestoreStep, ptr.Deref(r.StepsRecomputed, -1))
	}
	live := p.live(ctx, t, obj.GetName())
	if n := p.restarts(live.Object); n != p.resumes {
		t.Errorf("suspended and resumed: %d restarts, not %d", n, p.resumes)
	}
	if n := len(p.podGroups(ctx, t)); n != len(p.groups) {
		t.Errorf("%d PodGroups became %d", len(p.groups), n)
	}
	p.shape = now
	p.Say("  suspended and resumed: first step after %.1f s", p.row.Resume)
}

// empty waits until no pod of a job is left.
func (p *cell) empty(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	until(ctx, t, p.Cluster, "its pods are gone", func(ctx context.Context) (bool, string) {
		members, replaced, err := p.Members(ctx, namespace, name)
		return err == nil && len(members)+len(replaced) == 0, fmt.Sprintf("%d members, %d replaced, %v", len(members), len(replaced), err)
	})
}

// compare demands the losses of an undisturbed run: all of them.
func (p *cell) compare(t *testing.T, undisturbed map[trainer.At]string) {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	losses, _, err := trainer.Losses(string(text))
	if err == nil {
		err = trainer.Compare(losses, undisturbed)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(losses) != int(p.pods)*last {
		t.Errorf("%d losses of %d ranks and %d steps", len(losses), p.pods, last)
	}
	p.row.Losses = len(losses)
	p.Say("  finished: %d losses are those of an undisturbed run", len(losses))
}

// fail is the other story: a script that fails in the same way each time ends the job once, with the reason on the user's object.
func (p *cell) fail(ctx context.Context, t *testing.T) {
	obj := p.apply(ctx, t, "-bug", fmt.Sprintf(bugLine, p.pods))
	if err := waitFor(ctx, p.Cluster, p.resource+"/"+obj.GetName(), p.fails); err != nil {
		t.Fatal(err)
	}
	if err := p.During(ctx, "it ends once", 5*time.Second, func(ctx context.Context) (bool, string) {
		obj = p.live(ctx, t, obj.GetName())
		return p.restarts(obj.Object) == 0, fmt.Sprint(obj.Object["status"])
	}); err != nil {
		t.Error(err)
	}
	until(ctx, t, p.Cluster, "no pod is left running", func(ctx context.Context) (bool, string) {
		members, _, err := p.Members(ctx, namespace, obj.GetName())
		running := slices.ContainsFunc(members, func(m corev1.Pod) bool {
			return m.Status.Phase == corev1.PodRunning || m.Status.Phase == corev1.PodPending
		})
		return err == nil && !running, fmt.Sprintf("%d members, %v", len(members), err)
	})
	status, err := json.Marshal(obj.Object["status"])
	if err != nil {
		t.Fatal(err)
	}
	if !p.unsaid && !strings.Contains(string(status), v1alpha1.ReasonSameFailureTwice) {
		t.Errorf("the object does not say why it failed: %s", status)
	}
	until(ctx, t, p.Cluster, "an event on the object with the traceback", func(ctx context.Context) (bool, string) {
		return p.HasEvent(ctx, namespace, obj.GetKind(), obj.GetName(), v1alpha1.ReasonSameFailureTwice, bugText)
	})
	p.row.Failed = v1alpha1.ReasonSameFailureTwice
	p.Say("  a bug ended it: %s", status)
	p.deleted(ctx, t, obj.GetName())
}

// deleted deletes an object and waits until nothing is left of it.
func (p *cell) deleted(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	deleted(ctx, t, p.Cluster, p.resource+"/"+name)
	until(ctx, t, p.Cluster, "its Gang and its PodGroup are gone", func(ctx context.Context) (bool, string) {
		gangs, groups := p.gangs(ctx, t), p.podGroups(ctx, t)
		return len(gangs) == 0 && len(groups) == 0, fmt.Sprintf("%d gangs, %v", len(gangs), groups)
	})
}

// counts is what the kind's own controller, and that of batch Jobs, noted of failures and restarts.
func (p *cell) counts(ctx context.Context, t *testing.T) string {
	t.Helper()
	obj := p.live(ctx, t, p.job)
	counted := map[string]any{"restarts": p.restarts(obj.Object), "failures": p.failures(obj.Object)}
	for _, j := range p.list(ctx, t, schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "JobList"}) {
		if strings.HasPrefix(j.GetName(), p.job) {
			counted["job/"+j.GetName()] = batchFailures(j.Object)
		}
	}
	text, err := json.Marshal(counted)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// gangs returns all Gangs.
func (p *cell) gangs(ctx context.Context, t *testing.T) []v1alpha1.Gang {
	t.Helper()
	gangs := &v1alpha1.GangList{}
	if err := p.Client().List(ctx, gangs, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return gangs.Items
}

// podGroups returns Volcano's PodGroups of the job: each requires all members, where Volcano places them.
func (p *cell) podGroups(ctx context.Context, t *testing.T) (groups []string) {
	t.Helper()
	for _, g := range p.list(ctx, t, schema.GroupVersionKind{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroupList"}) {
		if !strings.Contains(g.GetName(), p.job) {
			continue
		}
		if n := number(g.Object, "spec", "minMember"); p.scheduler == volcano && n != p.pods {
			t.Errorf("PodGroup %s needs %d of %d members", g.GetName(), n, p.pods)
		}
		groups = append(groups, g.GetName()+" "+string(g.GetUID()))
	}
	slices.Sort(groups)
	return groups
}

func (p *cell) list(ctx context.Context, t *testing.T, kind schema.GroupVersionKind) []unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := p.Client().List(ctx, list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// waitFor is kubectl wait.
func waitFor(ctx context.Context, c *harness.Cluster, object, what string) error {
	_, err := c.RunKubectl(ctx, "wait", "--for="+what, object, "-n", namespace, "--timeout="+eventually.Timeout.String())
	return err
}

// deleted deletes an object and waits until no pod is left.
func deleted(ctx context.Context, t *testing.T, c *harness.Cluster, object string) {
	t.Helper()
	if _, err := c.RunKubectl(ctx, "delete", object, "-n", namespace); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, c, "its pods are gone", func(ctx context.Context) (bool, string) {
		list, err := c.Kube().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, fmt.Sprint(err)
	})
}

// seconds are rounded to what a table shows.
func seconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Millisecond)) / float64(time.Second)
}
