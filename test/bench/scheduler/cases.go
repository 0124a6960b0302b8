package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const (
	gpu         = "nvidia.com/gpu"
	gpusPerNode = 8
	// rackSize is the number of nodes in a rack.
	rackSize = 16
	// labelRack and labelZone are the labels of a node's rack and zone: the scheduler recognises both levels.
	labelRack = "topology.kubernetes.io/rack"
	labelZone = corev1.LabelTopologyZone
)

// group is pods that are created together.
type group struct {
	// name is empty for pods of no gang.
	name string
	size int
	// gpus is the request of each pod; if a node has fewer, the group never fits.
	gpus int64
	// rack: all pods must be in one rack.
	rack bool
}

// racks reports whether a gang of the case must be in one rack.
func (k kase) racks() bool {
	return slices.ContainsFunc(k.groups, func(g group) bool { return g.rack })
}

// fits reports whether the group can be placed in a cluster of so many nodes.
func (g group) fits(nodes int) bool { return g.gpus <= gpusPerNode && g.size <= nodes }

// kase is a case: the groups to create.
type kase struct {
	name, what string
	nodes      int
	groups     []group
	// cannot is, by system, why a system does not support the case.
	cannot map[string]string
	// systems are those that are measured, by name; none given: those of everyCase.
	systems []string
}

// everyCase are the systems that are measured in a case that names none.
var everyCase = []string{systemRaw, systemPlain, systemNative, systemCoscheduling, systemHoldfast}

// forms are the ways in which a user gives Holdfast a gang, with their limits.
var forms = []string{systemRaw, systemHoldfast, systemPodGroup, systemRawJob, systemJob}

func gangs(n, size int, name string) []group {
	all := make([]group, n)
	for i := range all {
		all[i] = group{name: fmt.Sprintf("%s-%03d", name, i), size: size, gpus: gpusPerNode}
	}
	return all
}

const noGangs = "it knows no gangs"

// cases are all cases. With quick they are small.
func cases(quick bool) []kase {
	f := 1
	if quick {
		f = 25
	}
	one := func(n int) []group { return gangs(1, n/f, "gang") }
	return []kase{
		{name: "1250x1250", what: "one gang, a pod on every node", nodes: 1250 / f, groups: one(1250), systems: append(forms, everyCase...)},
		{name: "5000x5000", what: "the same, four times as large", nodes: 5000 / f, groups: one(5000), systems: append(forms, everyCase...)},
		{name: larger, what: "two gangs of 5,000 pods on 15,000 nodes", nodes: 15000 / f, groups: gangs(2, 5000/f, "gang"), systems: []string{systemRaw, systemHoldfast}},
		{name: "100x16", what: "100 gangs at once, which fill all nodes", nodes: 1600 / f, groups: gangs(100/f, 16, "gang")},
		{name: "100x16-racks", what: "the same, each gang in one rack: every rack is filled by one", nodes: 1600 / f, groups: inRacks(gangs(100/f, rackSize, "gang")),
			cannot: map[string]string{systemPlain: noGangs, systemCoscheduling: "its gangs ask for no domain"}},
		{name: "mix", what: "gangs of 16 and 8 pods and pods of no gang, among gangs of which no pod fits", nodes: 1250 / f,
			groups: slices.Concat(
				gangsOf(max(1, 5/f), 16, 2*gpusPerNode, "never"),
				gangs(max(1, 30/f), 16, "large"),
				gangs(max(1, 40/f), 8, "small"),
				[]group{{size: 200 / f, gpus: gpusPerNode}},
			)},
		{name: "refused", what: "one pod more than 4,999 nodes take: the time until the refusal, and its writes", nodes: 5000/f - 1,
			groups: []group{{name: "gang-000", size: 5000 / f, gpus: gpusPerNode}},
			cannot: map[string]string{systemRaw: "it decides nothing", systemPlain: noGangs + ": it binds all pods but one"}},
	}
}

func inRacks(all []group) []group {
	for i := range all {
		all[i].rack = true
	}
	return all
}

func gangsOf(n, size int, gpus int64, name string) []group {
	all := gangs(n, size, name)
	for i := range all {
		all[i].gpus = gpus
	}
	return all
}

const nodeName = "node-%05d"

// node is a Node that stays Ready: nothing checks leases.
func node(i int, now time.Time) *corev1.Node {
	name := fmt.Sprintf(nodeName, i)
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(
			"192",
		), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"),
		corev1.ResourcePods: resource.MustParse("110"), gpu: *resource.NewQuantity(gpusPerNode, resource.DecimalSI),
	}
	rack := i / rackSize
	at := metav1.NewTime(now)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			labelRack: fmt.Sprintf("rack-%04d", rack), labelZone: fmt.Sprintf("zone-%02d", rack/16),
		}},
		Status: corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Bench", LastHeartbeatTime: at, LastTransitionTime: at},
		}},
	}
}

// podName is the name of a group's pod.
func podName(group string, slot int) string {
	return fmt.Sprintf("%s-%04d", cmp.Or(group, "single"), slot)
}

// pod returns a pod, the same for all systems except the keys of scheduler and group.
func pod(g group, slot int) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podName(g.name, slot), Labels: map[string]string{"app": "train"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: "train", Image: "train", Command: []string{"torchrun", "train.py"}, Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi")},
				Limits:   corev1.ResourceList{gpu: *resource.NewQuantity(g.gpus, resource.DecimalSI)},
			}}},
		},
	}
	if g.name != "" {
		// Written by an Indexed Job and Holdfast's webhook; other systems ignore it.
		p.Labels["batch.kubernetes.io/job-completion-index"] = fmt.Sprint(slot)
		p.Labels[v1alpha1.LabelGang] = g.name
		p.Annotations = map[string]string{v1alpha1.AnnotationGangSize: fmt.Sprint(g.size), v1alpha1.AnnotationGangSlot: fmt.Sprint(slot)}
		if g.rack {
			p.Annotations[v1alpha1.AnnotationTopologyRequired] = labelRack
		}
	}
	return p
}
