package handover

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
	vcbatch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	vctopology "volcano.sh/apis/pkg/apis/topology/v1alpha1"

	"holdfast.dev/holdfast/internal/golden"
)

// TestPodGroup: each testdata/pod-NAME.yaml has a pod of a gang of four, or of each role a pod, of which the first has one and the
// others three; group-NAME.yaml is its PodGroup, in which Volcano's own types find every field.
func TestPodGroup(t *testing.T) {
	golden.Each(t, "testdata/pod-*.yaml", func(t *testing.T, file, text string) {
		var roles []Role
		for _, doc := range strings.Split(text, "\n---\n") {
			pod := &corev1.Pod{}
			if err := yaml.UnmarshalStrict([]byte(doc), pod); err != nil {
				t.Fatal(err)
			}
			roles = append(roles, Role{Pods: 3, Like: pod})
		}
		if roles[0].Pods = 1; len(roles) == 1 {
			roles[0].Pods = 4
		}
		u := PodGroup("llama", roles...)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &vcscheduling.PodGroup{}, true); err != nil {
			t.Error(err)
		}
		out, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		golden.File(t, strings.Replace(file, "pod-", "group-", 1), string(out))
	})
}

// TestAnswers: each testdata/said-NAME.yaml is a PodGroup as Volcano left it, the .txt what a gang of four has to say then.
func TestAnswers(t *testing.T) {
	golden.Each(t, "testdata/said-*.yaml", func(t *testing.T, file, text string) {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		g := Read(u)
		var b strings.Builder
		for _, v := range []View{
			{},
			{Pod: "0/3 nodes are available: 3 Insufficient cpu."},
			{Queue: "queue resource quota insufficient: insufficient cpu"},
			{OnNodes: 3, Begun: true},
			{Begun: true},
		} {
			v.Name, v.Group, v.Size = "llama", &g, 4
			a := v.Answer()
			fmt.Fprintf(&b, "%s: %s\n", a.Reason, a.Message)
		}
		if note := (View{Name: "llama", Group: &g, Size: 4}).Note(); note != "" {
			b.WriteString("note: " + note + "\n")
		}
		golden.File(t, golden.Beside(file, ".txt"), b.String())
	})
}

// TestTheMinimumOfAKindsOwnGroup is written where its controller reads it: what is written on the group itself is written over.
func TestTheMinimumOfAKindsOwnGroup(t *testing.T) {
	yes := true
	for want, owner := range map[string]metav1.OwnerReference{
		"set spec.minAvailable of the Volcano Job to 4":                                          {APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Controller: &yes},
		"create the PyTorchJob with spec.runPolicy.schedulingPolicy.minAvailable: 4, or without": {APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Controller: &yes},
		"set its spec.minMember to 4":                                                            {APIVersion: "batch/v1", Kind: "Job", Controller: &yes},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minMember": int64(3)}}}
		u.SetOwnerReferences([]metav1.OwnerReference{owner})
		g := Read(u)
		if note := (View{Name: "llama", Group: &g, Size: 4}).Note(); !strings.HasSuffix(note, "leave the others waiting; "+want) {
			t.Error(note)
		}
	}
}

func TestNoGroup(t *testing.T) {
	v := View{Name: "llama", Problem: "the cluster serves no such API", Size: 4}
	if got := v.Answer(); got.Reason != "VolcanoNoGroup" || got.Placed || !strings.HasSuffix(got.Message, "PodGroup llama: the cluster serves no such API") {
		t.Errorf("%+v", got)
	}
	if note := v.Note(); note != "" {
		t.Error(note)
	}
}

// TestTextIsTheSameEachTime: Volcano names whichever pod it looks at first.
func TestTextIsTheSameEachTime(t *testing.T) {
	const said = "1/4 tasks in gang unschedulable: pod group is not ready, 1 Pending, 3 Running, 4 minAvailable; Pending: 1 Unschedulable. Origin reason is %s: 0/3 nodes are unavailable: 3 Insufficient cpu."
	a, b := Text(fmt.Sprintf(said, "llama-0-x2v4q")), Text(fmt.Sprintf(said, "llama-3-99bb7"))
	if a != b || !strings.HasSuffix(a, "1 Unschedulable. 0/3 nodes are unavailable: 3 Insufficient cpu.") {
		t.Errorf("%q, then %q", a, b)
	}
	if long := Text(strings.Repeat("x", 10_000)); len(long) > maxText+len("…") {
		t.Errorf("%d characters", len(long))
	}
}

func TestKeysOfVolcano(t *testing.T) {
	for ours, theirs := range map[string]string{
		GroupKey:     vcscheduling.KubeGroupNameAnnotationKey,
		MinMemberKey: vcscheduling.VolcanoGroupMinMemberAnnotationKey,
		QueueKey:     vcscheduling.QueueNameAnnotationKey,
		ModeKey:      vctopology.NetworkTopologyModeAnnotationKey,
		TierKey:      vctopology.NetworkTopologyHighestTierAnnotationKey,
		taskKey:      vcbatch.TaskSpecKey,
		prefix:       vcscheduling.AnnotationPrefix,

		labelsOfGroups[0]: vcscheduling.PodPreemptable,
		labelsOfGroups[1]: vcscheduling.CooldownTime,

		Kind.GroupVersion().String(): vcscheduling.SchemeGroupVersion.String(),
	} {
		if ours != theirs {
			t.Errorf("%q is written down, %q is Volcano's", ours, theirs)
		}
	}
}

// FuzzRead: whatever stands in a PodGroup, which any user may write, is read without harm and into bounded text.
func FuzzRead(f *testing.F) {
	f.Add("spec: {minMember: 4}\nstatus: {phase: Pending, conditions: [{type: Unschedulable, status: 'True', message: m}]}")
	f.Add("spec: 7\nstatus: {conditions: {a: b}}")
	f.Fuzz(func(t *testing.T, text string) {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		if yaml.Unmarshal([]byte(text), &u.Object) != nil {
			return
		}
		g := Read(u)
		if len(g.Unschedulable) > maxText+len("…") {
			t.Errorf("%d characters", len(g.Unschedulable))
		}
		v := View{Name: "g", Group: &g, Size: 2}
		if v.Answer().Reason == "" {
			t.Error("no reason")
		}
	})
}
