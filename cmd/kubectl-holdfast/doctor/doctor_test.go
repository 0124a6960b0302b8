package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"holdfast.dev/holdfast/internal/golden"
)

// TestText: each testdata/NAME.yaml has facts; NAME.txt has the report and the exit code.
func TestText(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, file, text string) {
		f := &Facts{}
		if err := yaml.UnmarshalStrict([]byte(text), f); err != nil {
			t.Fatal(err)
		}
		r := Of(f)
		golden.File(t, golden.Beside(file, ".txt"), fmt.Sprintf("%sexit code %d\n", r.Text(true), r.ExitCode()))
	})
}

// TestNothingReadIsNothingGreen: with no fact read no check passes, at any stage.
func TestNothingReadIsNothingGreen(t *testing.T) {
	for _, f := range []*Facts{{}, {Serves: true}, {Leaving: true}} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		for _, v := range fields {
			if read, ok := v.(map[string]any); ok {
				read["unread"] = "no right"
			}
		}
		delete(fields, "dryRun")
		if text, err = json.Marshal(fields); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, f); err != nil {
			t.Fatal(err)
		}
		r := Of(f)
		for _, got := range r.Findings {
			if got.Result == Pass || got.Result == Skip {
				t.Errorf("%s: %+v", r.Stage, got)
			}
		}
		if r.ExitCode() == 0 {
			t.Errorf("%s: exit code 0", r.Stage)
		}
	}
}

// TestEachReadCounts: a check that needs what could not be read does not pass, although all else is well.
func TestEachReadCounts(t *testing.T) {
	for _, c := range []struct {
		facts, unread string
		checks        []string
	}{
		{"well", "deployments", []string{"Components", "Versions", "AgentImage"}},
		{"well", "daemonSets", []string{"Components", "Versions", "Taints"}},
		{"well", "slices", []string{"Webhook", "Coordinator"}},
		{"well", "services", []string{"Coordinator"}},
		{"well", "webhooks", []string{"Webhook", "Certificate"}},
		{"well", "leaders", []string{"Leaders"}},
		{"well", "leases", []string{"Leases"}},
		{"well", "nodes", []string{"Nodes", "NodeDaemon", "NVML", "Leases"}},
		{"well", "namespaces", []string{"PodSecurity"}},
		{"well", "policies", []string{"NetworkPolicies"}},
		{"well", "ownPolicies", []string{"NetworkPolicies"}},
		{"well", "quotas", []string{"Quota"}},
		{"well", "ranges", []string{"Quota"}},
		{"uninstall", "gangs", []string{"RunningGangs"}},
		{"uninstall", "pending", []string{"WaitingPods"}},
		{"uninstall", "replaced", []string{"WaitingPods"}},
		{"uninstall", "deployments", []string{"WaitingPods"}},
		{"uninstall", "webhooks", []string{"Admission"}},
	} {
		text, err := os.ReadFile("testdata/" + c.facts + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]any{}
		if err := yaml.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		fields[c.unread] = map[string]any{"unread": "no right"}
		if text, err = yaml.Marshal(fields); err != nil {
			t.Fatal(err)
		}
		f := &Facts{}
		if err := yaml.UnmarshalStrict(text, f); err != nil {
			t.Fatal(err)
		}
		found := map[string]Result{}
		for _, one := range Of(f).Findings {
			found[one.Check] = one.Result
		}
		for _, name := range c.checks {
			if r, is := found[name]; !is || r == Pass || r == Skip {
				t.Errorf("%s without %s: %s is %q (%v)", c.facts, c.unread, name, r, is)
			}
		}
	}
}

// TestPolicies: which connections NetworkPolicies block.
func TestPolicies(t *testing.T) {
	any := metav1.LabelSelector{}
	gangs := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "holdfast.dev/gang", Operator: metav1.LabelSelectorOpExists}}}
	number := func(from, to int32) []networkingv1.NetworkPolicyPort {
		return []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(from)), EndPort: ptr.To(to)}}
	}
	named := []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromString("coordinator"))}}
	peer := func(p networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyIngressRule {
		return []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{p}}}
	}
	labelled := func(who string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"who": who}}
	}
	rank := end{"team", map[string]string{"holdfast.dev/gang": "any"}, map[string]string{"who": "team"}}
	there := end{"holdfast-system", map[string]string{"a": "b"}, map[string]string{}}
	to := port{corev1.ProtocolTCP, 7443, "coordinator"}
	for name, c := range map[string]struct {
		from    end
		rules   []networkingv1.NetworkPolicyIngressRule
		blocked bool
	}{
		"no rule":                      {rank, nil, true},
		"everything":                   {rank, []networkingv1.NetworkPolicyIngressRule{{}}, false},
		"the port's name":              {rank, []networkingv1.NetworkPolicyIngressRule{{Ports: named}}, false},
		"another port":                 {rank, []networkingv1.NetworkPolicyIngressRule{{Ports: number(1, 7442)}}, true},
		"a range":                      {rank, []networkingv1.NetworkPolicyIngressRule{{Ports: number(7000, 8000)}}, false},
		"own namespace only":           {rank, peer(networkingv1.NetworkPolicyPeer{PodSelector: &any}), true},
		"gangs of all namespaces":      {rank, peer(networkingv1.NetworkPolicyPeer{NamespaceSelector: &any, PodSelector: &gangs}), false},
		"a label of the namespace":     {rank, peer(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled("team")}), false},
		"another namespace":            {rank, peer(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled("x")}), true},
		"from outside, pods only":      {end{}, peer(networkingv1.NetworkPolicyPeer{NamespaceSelector: &any}), true},
		"from outside, some addresses": {end{}, peer(networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}), false},
	} {
		p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: there.namespace, Name: "p"}}
		p.Spec.Ingress = c.rules
		if got := blocked([]networkingv1.NetworkPolicy{p}, flow{from: c.from, to: there, port: to}); (got != "") != c.blocked {
			t.Errorf("%s: blocked by %q", name, got)
		}
	}
	out := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "out"}}
	out.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	if got := blocked([]networkingv1.NetworkPolicy{out}, flow{from: rank, to: there, port: to}); got != "NetworkPolicy team/out" {
		t.Errorf("egress: %q", got)
	}
}

// TestLeases: a lease that is not renewed is a fault of a Ready node, and a warning of one that is not, by the clocks of the kubelets: this
// machine's may be ahead. If no lease is renewed, the clock may be wrong or the cluster.
func TestLeases(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		age, other time.Duration // of the leases of a node and of another one
		ready      corev1.ConditionStatus
		want       Result
		says       string
	}{
		{5 * time.Second, 0, corev1.ConditionTrue, Pass, ""},
		{90 * time.Second, 0, corev1.ConditionTrue, Pass, ""},
		{2 * time.Minute, 0, corev1.ConditionTrue, Fail, "n (2m0s)"},
		{2 * time.Minute, 0, corev1.ConditionUnknown, Warn, "n (2m0s)"},
		{2 * time.Minute, -time.Hour, corev1.ConditionTrue, Fail, "n (2m0s)"}, // the other kubelet's clock is ahead
		{5 * time.Second, -time.Hour, corev1.ConditionTrue, Pass, ""},
		{99 * time.Second, 95 * time.Second, corev1.ConditionTrue, Pass, ""},
		{time.Hour, time.Hour - 5*time.Second, corev1.ConditionTrue, Unknown, "no lease was renewed for 59m55s by this machine's clock (2026-01-02T03:04:05Z)"},
		{time.Hour, 30 * time.Minute, corev1.ConditionTrue, Fail, "n (30m0s)"},
	} {
		f := &Facts{At: now}
		for name, age := range map[string]time.Duration{"n": c.age, "other": c.other} {
			n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
			l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
			l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = ptr.To[int32](40), ptr.To(metav1.NewMicroTime(now.Add(-age)))
			f.Nodes.Value, f.Leases.Value = append(f.Nodes.Value, n), append(f.Leases.Value, l)
		}
		j := &judgement{of: f}
		leases(f, j)
		if got := j.finding("Leases"); got.Result != c.want || !strings.Contains(got.Message, c.says) {
			t.Errorf("%+v: %+v", c, got)
		}
		leader := coordinationv1.Lease{}
		leader.Spec.RenewTime = ptr.To(metav1.NewMicroTime(now.Add(-4 * time.Second)))
		f.Leaders.Value = []coordinationv1.Lease{leader}
		j = &judgement{of: f}
		leases(f, j)
		if got := j.finding("Leases"); c.want == Unknown && (got.Result != Fail || !strings.Contains(got.Message, "n (59m56s), other (59m51s)")) {
			t.Errorf("with a leader's lease: %+v", got)
		}
		f.Leaders.Value = nil
		if at := f.report().At; at.After(now.Add(-min(c.age, max(0, c.other)))) {
			t.Errorf("%+v: nodes are judged as of %s", c, at)
		}
	}
}

// TestNamesOfTheInstallation: remedies and messages name no object of the manifests where the installation has other names.
func TestNamesOfTheInstallation(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, _, text string) {
		f := &Facts{}
		if err := yaml.UnmarshalStrict([]byte(text), f); err != nil {
			t.Fatal(err)
		}
		f.Installed = Names{Namespace: "ml", NodeNamespace: "ml-node", Prefix: "acme-"}
		for _, got := range Of(f).Findings {
			for _, word := range []string{"holdfast-system", "-n holdfast-node", " holdfast-doctor", "deploy/holdfast-"} {
				if all := got.Message + got.Remedy + strings.Join(got.Also, " "); strings.Contains(all, word) {
					t.Errorf("%s: %q in %s", got.Check, word, all)
				}
			}
		}
	})
}
