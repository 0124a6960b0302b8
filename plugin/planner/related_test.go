package planner

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podWith(labels map[string]string, set func(*v1.PodSpec)) *v1.Pod {
	p := pod("p", 1)
	p.Labels = labels
	if set != nil {
		set(&p.Spec)
	}
	return p
}

// away returns anti-affinity to pods of an app: in the namespaces that have these labels, or, if in is nil, in the pod's own namespace.
func away(app string, in *metav1.LabelSelector) func(*v1.PodSpec) {
	return func(s *v1.PodSpec) {
		term := v1.PodAffinityTerm{LabelSelector: selecting(app), TopologyKey: v1.LabelHostname, NamespaceSelector: in}
		s.Affinity = &v1.Affinity{
			PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}},
		}
	}
}

func near(app string) func(*v1.PodSpec) {
	return func(s *v1.PodSpec) {
		term := v1.PodAffinityTerm{LabelSelector: selecting(app), TopologyKey: v1.LabelHostname}
		s.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	}
}

func spreadAmong(app string, unsatisfied v1.UnsatisfiableConstraintAction) func(*v1.PodSpec) {
	return func(s *v1.PodSpec) {
		c := v1.TopologySpreadConstraint{
			MaxSkew:           1,
			TopologyKey:       v1.LabelTopologyZone,
			WhenUnsatisfiable: unsatisfied,
			LabelSelector:     selecting(app),
		}
		s.TopologySpreadConstraints = []v1.TopologySpreadConstraint{c}
	}
}

func onPort(n int32) func(*v1.PodSpec) {
	return func(s *v1.PodSpec) { s.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: n, HostPort: n}} }
}

func mounts(claim string) func(*v1.PodSpec) {
	return func(s *v1.PodSpec) {
		source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
		s.Volumes = []v1.Volume{{Name: "v", VolumeSource: source}}
	}
}

func selecting(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// TestKeepsOff: which rules of a pod, or rules of other pods that select it, make a gang's plan depend on other pods.
func TestKeepsOff(t *testing.T) {
	web, train := map[string]string{"app": "web"}, map[string]string{"app": "train"}
	everywhere := &metav1.LabelSelector{}
	for name, c := range map[string]struct {
		there, pod *v1.Pod
		want       bool
	}{
		"neither has a rule":                        {podWith(web, nil), podWith(train, nil), false},
		"the same port":                             {podWith(web, onPort(80)), podWith(train, onPort(80)), true},
		"another port":                              {podWith(web, onPort(80)), podWith(train, onPort(81)), false},
		"its anti-affinity selects the gang":        {podWith(web, away("train", nil)), podWith(train, nil), true},
		"its anti-affinity selects its own":         {podWith(web, away("web", nil)), podWith(train, nil), false},
		"the gang's anti-affinity selects it":       {podWith(web, nil), podWith(train, away("web", nil)), true},
		"the gang's anti-affinity selects the gang": {podWith(web, nil), podWith(train, away("train", nil)), false},
		"in all namespaces":                         {podWith(web, nil), podWith(train, away("web", everywhere)), true},
		"the gang's affinity selects it":            {podWith(web, nil), podWith(train, near("web")), true},
		"its own affinity":                          {podWith(web, near("train")), podWith(train, nil), false},
		"the gang is spread among such":             {podWith(web, nil), podWith(train, spreadAmong("web", v1.DoNotSchedule)), true},
		"where it can be":                           {podWith(web, nil), podWith(train, spreadAmong("web", v1.ScheduleAnyway)), false},
		"it is spread among its own":                {podWith(web, spreadAmong("web", v1.DoNotSchedule)), podWith(train, nil), false},
		"both have volumes":                         {podWith(web, mounts("a")), podWith(train, mounts("b")), true},
		"one has a volume":                          {podWith(web, mounts("a")), podWith(train, nil), false},
	} {
		if got := MayKeepAway(asked([]*v1.Pod{c.pod}), []Taking{{Pod: c.there, Node: "n"}}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	elsewhere := podWith(web, nil)
	elsewhere.Namespace = "other"
	if keepsOff(elsewhere, podWith(train, away("web", nil))) || keepsOff(elsewhere, podWith(train, spreadAmong("web", v1.DoNotSchedule))) {
		t.Error("a pod of a namespace that no rule selects keeps another one off")
	}
}
