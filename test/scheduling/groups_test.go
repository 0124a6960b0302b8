package scheduling

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcbatch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// TestGroups: gangs of other projects' APIs, which the API server begins to serve while the scheduler runs. The scheduler has exactly the
// rights of the manifests.
func TestGroups(t *testing.T) {
	s := newStage(t, nodes, "--arg=kube-apiserver=--runtime-config=scheduling.k8s.io/v1beta1=true", "--arg=kube-apiserver=--feature-gates=GenericWorkload=true")
	s.asServiceAccount()
	r := s.start()
	for _, part := range []struct {
		name string
		test func(*stage)
	}{{"Coscheduling", coscheduled}, {"Surplus", surplusOfGroup}, {"Volcano", volcanoed}, {"PyTorchJob", operated}, {"Native", natively}, {"TwoGroups", twoGroups}} {
		t.Run(part.name, func(t *testing.T) {
			s.t = t
			part.test(s)
		})
	}
	for _, line := range strings.Split(r.said(), "\n") {
		if strings.Contains(line, "forbidden") {
			t.Errorf("the scheduler lacks a right: %s", line)
		}
	}
}

// asServiceAccount makes replicas connect as the account of the manifests.
func (s *stage) asServiceAccount() {
	s.t.Helper()
	if out, err := s.cluster.Kubectl(s.ctx, "apply", "-f", filepath.Join(source, "manifests/scheduler/rbac.yaml")); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	admin, err := clientcmd.LoadFromFile(s.cluster.Kubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	for name := range admin.AuthInfos {
		admin.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: s.token("holdfast-scheduler")}
	}
	s.kubeconfig = filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*admin, s.kubeconfig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) apply(yaml string) {
	s.t.Helper()
	if out, err := s.cluster.KubectlIn(s.ctx, yaml, "apply", "-f", "-"); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

func (s *stage) applyFile(path string) {
	s.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.apply(string(text))
}

// read gets an object of a group version as its own type.
func read[T any](s *stage, gv schema.GroupVersion, name string) T {
	s.t.Helper()
	config, err := s.cluster.Config()
	if err != nil {
		s.t.Fatal(err)
	}
	var into T
	u, err := dynamic.NewForConfigOrDie(config).Resource(gv.WithResource("podgroups")).Namespace("default").Get(s.ctx, name, metav1.GetOptions{})
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &into)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return into
}

// grouped returns a pod that takes a whole simulated node and is in no gang of Holdfast.
func grouped(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := member("", 0, 1, name)
	p.Labels, p.Annotations = map[string]string{}, map[string]string{}
	change(p)
	return p
}

// grow creates pods of a group and returns their names.
func (s *stage) grow(group string, from, to int, change func(*corev1.Pod)) []string {
	s.t.Helper()
	var names []string
	for i := from; i < to; i++ {
		p := grouped(fmt.Sprintf("%s-%d", group, i), change)
		p.Labels["batch.kubernetes.io/job-completion-index"] = fmt.Sprint(i)
		s.create(p)
		names = append(names, p.Name)
	}
	return names
}

// said returns the scheduler's message on a pod.
func (s *stage) said(pod string) string {
	p := s.pods()[pod]
	if p == nil {
		return ""
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Message
		}
	}
	return ""
}

func (s *stage) saying(pod, text string) func() bool {
	return func() bool { return strings.Contains(s.said(pod), text) }
}

func (s *stage) onNodes(prefix string) int {
	n := 0
	for name, p := range s.pods() {
		if strings.HasPrefix(name, prefix) && p.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// coscheduled tests PodGroups of scheduler-plugins.
func coscheduled(s *stage) {
	in := func(group string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels[coscheduling.PodGroupLabel] = group }
	}
	early := s.grow("early", 0, 6, in("early"))
	s.until("the API to be missed", s.saying(early[0], "which this cluster does not serve: install it"))
	s.applyFile(filepath.Join(source, "test/peers/podgroups.yaml"))
	s.until("the group to be missed", s.saying(early[0], "podgroups.scheduling.x-k8s.io/early does not exist in namespace default: create it"))
	const group = "{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: %s, namespace: default}, spec: {minMember: %d}}\n"
	s.apply(fmt.Sprintf(group, "early", 4))
	s.until("all six, of which four are needed, to be placed", s.bound(early...))
	phase := func(name string, want coscheduling.PodGroupPhase, running int32) func() bool {
		return func() bool {
			got := read[coscheduling.PodGroup](s, coscheduling.SchemeGroupVersion, name).Status
			return got.Phase == want && got.Running == running
		}
	}
	s.until("the group's status to count six running pods", phase("early", coscheduling.PodGroupRunning, 6))
	late := s.grow("early", 6, 10, in("early"))
	s.until("two more to join, and two to wait", func() bool { return s.onNodes("early-") == 8 })
	s.until("the first of those that wait to hear why", func() bool {
		return slices.ContainsFunc(late, func(n string) bool { return strings.Contains(s.said(n), "are on nodes), 0 fit") })
	})
	if d := s.pods(); len(d) != 10 {
		s.t.Errorf("of ten pods %d are there: a group that has what it needs was taken back", len(d))
	}
	s.clear()

	s.apply(fmt.Sprintf(group, "big", 9))
	s.grow("big", 0, 8, in("big"))
	s.until("the group to wait for its pods", phase("big", coscheduling.PodGroupPending, 0))
	s.grow("big", 8, 9, in("big"))
	s.until("the whole group to be refused", s.saying("big-0", "9 pods wanted, 8 fit: 8 nodes"))
	s.until("the group to hear it", func() bool { return s.event("big", v1alpha1.ReasonInsufficientNodes) })
	if n := s.onNodes("big-"); n != 0 {
		s.t.Errorf("%d of a group that does not fit have nodes", n)
	}
	s.clear()

	s.apply("{apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: rich, namespace: default}, spec: {minMember: 1, minResources: {nvidia.com/gpu: 65}}}")
	s.grow("rich", 0, 1, in("rich"))
	s.until("what is free to be too little", s.saying("rich-0", "the cluster has less free than the group's minResources: nvidia.com/gpu (65 requested)"))
	s.clear()
}

// event reports whether there is an event with this reason about an object.
func (s *stage) event(name, reason string) bool {
	s.t.Helper()
	list, err := s.client.EventsV1().Events("default").List(s.ctx, metav1.ListOptions{FieldSelector: "regarding.name=" + name})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == reason {
			return true
		}
	}
	return false
}

// hyperNodes creates two tiers: two HyperNodes of four nodes each, within one HyperNode. They select nodes by name, pattern and label.
func (s *stage) hyperNodes() {
	s.t.Helper()
	all := s.nodes()
	exact := ""
	for _, n := range all[:4] {
		exact += fmt.Sprintf("{type: Node, selector: {exactMatch: {name: %s}}}, ", n.Name)
	}
	s.apply(fmt.Sprintf(`{apiVersion: topology.volcano.sh/v1alpha1, kind: HyperNode, metadata: {name: leaf-a}, spec: {tier: 1, members: [%s]}}
---
{apiVersion: topology.volcano.sh/v1alpha1, kind: HyperNode, metadata: {name: leaf-b}, spec: {tier: 1, members: [{type: Node, selector: {regexMatch: {pattern: "^(%s|%s)$"}}}, {type: Node, selector: {labelMatch: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s, %s]}]}}}]}}
---
{apiVersion: topology.volcano.sh/v1alpha1, kind: HyperNode, metadata: {name: root}, spec: {tier: 2, members: [{type: HyperNode, selector: {exactMatch: {name: leaf-a}}}, {type: HyperNode, selector: {regexMatch: {pattern: "-b$"}}}]}}
`, exact, all[4].Name, all[5].Name, all[6].Name, all[7].Name))
}

// volcanoed: a Volcano Job with a launcher and workers. The test creates the objects that Volcano's controllers would create.
func volcanoed(s *stage) {
	s.applyFile("testdata/volcano.yaml")
	s.hyperNodes()
	s.vcjob("train", 5, 4)
	s.until("the group to be let in, so that its pods are made", func() bool {
		return read[vcscheduling.PodGroup](s, vcscheduling.SchemeGroupVersion, "train-x").Status.Phase == vcscheduling.PodGroupInqueue
	})
	names := append(s.grow("train-worker", 0, 4, ofTask("train", "worker")), "train-launcher-0")
	s.create(grouped("train-launcher-0", func(p *corev1.Pod) {
		ofTask("train", "launcher")(p)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	}))
	s.until("launcher and workers to be placed", s.bound(names...))
	pods, leaf := s.pods(), map[string]bool{}
	for _, n := range names {
		at := pods[n].Annotations[v1alpha1.AnnotationTopologyDomain]
		_, tier, _ := strings.Cut(at, "tier-1=")
		leaf[tier] = true
		if !strings.Contains(at, "tier-2=root,tier-1=leaf-") {
			s.t.Errorf("%s has the domain %q", n, at)
		}
	}
	if len(leaf) != 1 {
		s.t.Errorf("hard tier 1 was not held: %v", leaf)
	}
	s.until("the group to run", func() bool {
		got := read[vcscheduling.PodGroup](s, vcscheduling.SchemeGroupVersion, "train-x").Status
		return got.Phase == vcscheduling.PodGroupRunning && got.Running == 5 && len(got.Conditions) == 1 &&
			got.Conditions[0].Type == vcscheduling.PodGroupScheduled
	})
	s.until("an event that the queue is ignored", func() bool { return s.event("train-x", v1alpha1.ReasonSettingsIgnored) })
	s.clear()

	s.vcjob("wide", 5, 5)
	s.grow("wide-worker", 0, 5, ofTask("wide", "worker"))
	s.until("five to be too many for a leaf of four", s.saying("wide-worker-0", "tier-1: 0 of 2 have room for 5"))
	s.until("the group to hear it", func() bool {
		got := read[vcscheduling.PodGroup](s, vcscheduling.SchemeGroupVersion, "wide-x").Status
		return len(got.Conditions) == 1 && got.Conditions[0].Type == vcscheduling.PodGroupUnschedulableType &&
			strings.Contains(got.Conditions[0].Message, "tier-1: 0 of 2")
	})
	s.clear()
	if out, err := s.cluster.Kubectl(s.ctx, "delete", "hypernodes.topology.volcano.sh", "--all"); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// vcjob creates a Volcano Job for Holdfast's scheduler, with the PodGroup that Volcano's job controller creates for it.
func (s *stage) vcjob(name string, least, workers int) {
	s.t.Helper()
	s.apply(fmt.Sprintf("{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: %s, namespace: default}, spec: {schedulerName: %s, tasks: [{name: worker, replicas: %d}]}}",
		name, v1alpha1.SchedulerName, workers))
	s.groupOf(name+"-x", vcbatch.SchemeGroupVersion.WithKind("Job"), "jobs.batch.volcano.sh", name, vcscheduling.PodGroupSpec{
		MinMember:       int32(least),
		MinTaskMember:   map[string]int32{"worker": int32(workers)},
		Queue:           "research",
		NetworkTopology: &vcscheduling.NetworkTopologySpec{Mode: vcscheduling.HardNetworkTopologyMode, HighestTierAllowed: ptr.To(1)},
	})
}

// groupOf creates a PodGroup of Volcano that a job owns.
func (s *stage) groupOf(name string, kind schema.GroupVersionKind, resource, job string, spec vcscheduling.PodGroupSpec) {
	s.t.Helper()
	uid, err := s.cluster.Kubectl(s.ctx, "get", resource, job, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		s.t.Fatal(err)
	}
	pg := vcscheduling.PodGroup{TypeMeta: metav1.TypeMeta{APIVersion: vcscheduling.SchemeGroupVersion.String(), Kind: "PodGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: job, UID: types.UID(uid), Controller: ptr.To(true)}}},
		Spec: spec}
	text, err := json.Marshal(pg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.apply(string(text))
}

// operated: PyTorchJobs of a training-operator with --gang-scheduler-name=volcano. The test creates what the operator would: a PodGroup,
// and the pods only after the PodGroup is no longer Pending. Volcano's scheduler does not run.
func operated(s *stage) {
	s.applyFile("testdata/pytorchjob.yaml")
	if out, err := s.cluster.Kubectl(s.ctx, "wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org", "--timeout=60s"); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	phase := func(name string) vcscheduling.PodGroupPhase {
		return read[vcscheduling.PodGroup](s, vcscheduling.SchemeGroupVersion, name).Status.Phase
	}
	for _, of := range [][2]string{{"theirs", "volcano"}, {"torch", v1alpha1.SchedulerName}} {
		replica := fmt.Sprintf("{replicas: 1, template: {spec: {schedulerName: %s, containers: []}}}", of[1])
		s.apply(fmt.Sprintf("{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: %s, namespace: default}, spec: {pytorchReplicaSpecs: {Master: %s, Worker: %[2]s}}}",
			of[0], replica))
		s.groupOf(of[0], schema.GroupVersionKind{Group: "kubeflow.org", Version: "v1", Kind: "PyTorchJob"}, "pytorchjobs", of[0],
			vcscheduling.PodGroupSpec{MinMember: 2, Queue: "default"})
	}
	s.until("the group to be let in, so that its pods are made", func() bool { return phase("torch") == vcscheduling.PodGroupInqueue })
	if got := phase("theirs"); got != "" {
		s.t.Errorf("the group of a PyTorchJob that Volcano places is %s", got)
	}
	replica := func(role string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[vcscheduling.KubeGroupNameAnnotationKey], p.Annotations[vcbatch.TaskSpecKey] = "torch", role
			p.Labels["training.kubeflow.org/job-name"], p.Labels["training.kubeflow.org/replica-type"] = "torch", role
		}
	}
	first := s.grow("torch-master", 0, 1, replica("master"))
	s.until("the master to wait for the worker", s.saying(first[0], "1 of 2 pods exist"))
	s.until("both to be placed", s.bound(append(first, s.grow("torch-worker", 0, 1, replica("worker"))...)...))
	s.until("the group to run", func() bool { return phase("torch") == vcscheduling.PodGroupRunning })
	s.clear()
}

// ofTask marks a pod as Volcano's job controller does.
func ofTask(job, task string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[vcscheduling.KubeGroupNameAnnotationKey], p.Annotations[vcbatch.TaskSpecKey] = job+"-x", task
		p.Labels[vcbatch.JobNameKey], p.Labels[vcbatch.TaskSpecKey] = job, task
	}
}

// natively tests the PodGroup of Kubernetes itself.
func natively(s *stage) {
	in := func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("own")} }
	s.apply("{apiVersion: scheduling.k8s.io/v1beta1, kind: PodGroup, metadata: {name: own, namespace: default}, spec: {schedulingPolicy: {gang: {minCount: 3}}}}")
	s.grow("own", 0, 2, in)
	s.until("the group to wait", func() bool {
		c := meta.FindStatusCondition(
			read[schedulingv1beta1.PodGroup](s, schedulingv1beta1.SchemeGroupVersion, "own").Status.Conditions,
			schedulingv1beta1.PodGroupInitiallyScheduled,
		)
		return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "2 of 3 pods exist")
	})
	if n := s.onNodes("own-"); n != 0 {
		s.t.Errorf("%d of a group that lacks a pod have nodes", n)
	}
	s.grow("own", 2, 3, in)
	s.until("three to be placed", s.bound("own-0", "own-1", "own-2"))
	s.until("the group to hear it", func() bool {
		return meta.IsStatusConditionTrue(
			read[schedulingv1beta1.PodGroup](s, schedulingv1beta1.SchemeGroupVersion, "own").Status.Conditions,
			schedulingv1beta1.PodGroupInitiallyScheduled,
		)
	})
	s.clear()
}

// twoGroups: a pod that names two groups is in none, and its message names both. Holdfast's own label takes precedence.
func twoGroups(s *stage) {
	s.create(grouped("torn", func(p *corev1.Pod) {
		p.Labels[coscheduling.PodGroupLabel], p.Annotations[vcscheduling.KubeGroupNameAnnotationKey] = "one", "other"
	}))
	s.until("the pod to be refused", s.saying("torn", "the pod is in more than one group: one of podgroups.scheduling.x-k8s.io"))
	ours := member("ours", 0, 1, "ours-0")
	ours.Labels[coscheduling.PodGroupLabel] = "nowhere"
	s.create(ours)
	s.until("our own gang to be placed, whatever else claims its pod", s.bound("ours-0"))
	s.clear()
}
