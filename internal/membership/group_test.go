package membership

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	coscheduling "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	vcbatch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	vcscheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

func groupPod(labels, annotations map[string]string, native string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: labels, Annotations: annotations}}
	if native != "" {
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(native)}
	}
	return p
}

func TestGroupOf(t *testing.T) {
	one, other := map[string]string{coscheduling.PodGroupLabel: "x"}, map[string]string{vcscheduling.KubeGroupNameAnnotationKey: "y"}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
		two  string
	}{
		"nothing":            {groupPod(nil, nil, ""), "", ""},
		"coscheduling":       {groupPod(one, nil, ""), "podgroups.scheduling.x-k8s.io/x", ""},
		"Volcano":            {groupPod(nil, other, ""), "podgroups.scheduling.volcano.sh/y", ""},
		"Volcano, both keys": {groupPod(nil, map[string]string{vcscheduling.KubeGroupNameAnnotationKey: "y", vcscheduling.VolcanoGroupNameAnnotationKey: "y"}, ""), "podgroups.scheduling.volcano.sh/y", ""},
		"Volcano, both keys, two names": {groupPod(nil, map[string]string{vcscheduling.KubeGroupNameAnnotationKey: "y", vcscheduling.VolcanoGroupNameAnnotationKey: "z"}, ""), "",
			"y of podgroups.scheduling.volcano.sh (annotation scheduling.k8s.io/group-name), z of"},
		"Kubernetes":         {groupPod(nil, nil, "z"), "podgroups.scheduling.k8s.io/z", ""},
		"two":                {groupPod(one, other, ""), "", "the pod is in more than one group: x of podgroups.scheduling.x-k8s.io"},
		"three":              {groupPod(one, other, "z"), "", "z of podgroups.scheduling.k8s.io (spec.schedulingGroup); leave one of them"},
		"our own label wins": {groupPod(map[string]string{v1alpha1.LabelGang: "g", coscheduling.PodGroupLabel: "x"}, other, ""), "g", ""},
		"replaced":           {groupPod(map[string]string{v1alpha1.LabelReplaced: "true", coscheduling.PodGroupLabel: "x"}, nil, ""), "", ""},
	} {
		key, ok := GroupOf(c.pod)
		if ok != (c.want != "") || (ok && (key.Name != c.want || key.Namespace != "ns")) {
			t.Errorf("%s: in %v %v, want %q", name, key, ok, c.want)
		}
		if said := TwoGroups(c.pod); (said == "") != (c.two == "") || !strings.Contains(said, c.two) {
			t.Errorf("%s: %q is said of two groups, want %q", name, said, c.two)
		}
	}
}

func TestKeysOfOthers(t *testing.T) {
	for ours, theirs := range map[string]string{
		coschedulingGroup: coscheduling.PodGroupLabel,
		kubeGroup:         vcscheduling.KubeGroupNameAnnotationKey,
		volcanoGroup:      vcscheduling.VolcanoGroupNameAnnotationKey,
		volcanoTask:       vcbatch.TaskSpecKey,
		volcanoIndex:      vcbatch.TaskIndex,
	} {
		if ours != theirs {
			t.Errorf("%q is written down, %q is the key", ours, theirs)
		}
	}
}
