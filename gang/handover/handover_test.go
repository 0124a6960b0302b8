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

// TestPodGroup: each testdata/pod-NAME.yaml has a pod of a gang of four, or one pod per role, where the first role has one pod and the
// others three. group-NAME.yaml is the resulting PodGroup. Volcano's own types must decode every field of it.
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

// TestAnswers: each testdata/said-NAME.yaml is a PodGroup with a status that Volcano wrote. The .txt file is the resulting text for a gang
// of four.
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

// TestTheMinimumOfAKindsOwnGroup: the minimum is written where the kind's controller reads it, because that controller overwrites the field
// of the PodGroup.
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

// TestTextIsTheSameEachTime: Volcano's messages begin with whichever pod it visits first. The text must not depend on that.
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

// FuzzRead: any user may write a PodGroup. Its content is read into a text of bounded length, whatever it is.
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
