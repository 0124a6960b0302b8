package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/audit"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/kustomize/api/krusty"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// schedulerAccount is the account of the scheduler.
const schedulerAccount = "system:serviceaccount:holdfast-system:holdfast-scheduler"

// TestControlPlaneLeavesADeadNodeSoon: pods of the control plane leave a dead node soon. Kubernetes' default is five minutes.
func TestControlPlaneLeavesADeadNodeSoon(t *testing.T) {
	for _, name := range []string{"holdfast-controller", "holdfast-scheduler"} {
		d := find[appsv1.Deployment](t, name)
		var said []string
		for _, x := range d.Spec.Template.Spec.Tolerations {
			said = append(said, fmt.Sprint(x.Key, " ", x.Effect, " ", *x.TolerationSeconds))
		}
		if got := strings.Join(said, ", "); got != "node.kubernetes.io/not-ready NoExecute 10, node.kubernetes.io/unreachable NoExecute 10" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestCollectionBeginsBelowTheLimit: the kubelet sets a variable from the container's memory limit. With its value Go collects garbage
// before the kernel ends the container, whatever limit an overlay sets.
func TestCollectionBeginsBelowTheLimit(t *testing.T) {
	for _, name := range []string{"holdfast-controller", "holdfast-scheduler"} {
		c := find[appsv1.Deployment](t, name).Spec.Template.Spec.Containers[0]
		for _, limit := range []string{c.Resources.Limits.Memory().String(), "4Gi", "700M"} {
			bytes := resource.MustParse(limit)
			env := map[string]string{}
			for _, e := range c.Env {
				if env[e.Name] = e.Value; e.ValueFrom == nil {
					continue
				}
				ref := e.ValueFrom.ResourceFieldRef
				if ref == nil || ref.ContainerName != c.Name || ref.Resource != "limits.memory" {
					t.Fatalf("%s: %s is of %+v", name, e.Name, e.ValueFrom)
				}
				env[e.Name] = fmt.Sprint((bytes.Value() + ref.Divisor.Value() - 1) / ref.Divisor.Value())
			}
			said := env["GOMEMLIMIT"]
			for other, value := range env {
				said = strings.ReplaceAll(said, "$("+other+")", value)
			}
			got, err := strconv.ParseFloat(said, 64) // a number without unit is in bytes
			if share := got / float64(bytes.Value()); err != nil || share < 0.9 || share > 0.96 {
				t.Errorf("%s: with a limit of %s GOMEMLIMIT is %q, %.0f %% of it (%v)", name, limit, said, share*100, err)
			}
		}
	}
}

// component returns the objects of a kind that an optional component makes of these resources.
func component(t *testing.T, name, kind string, resources ...string) (found [][]byte) {
	t.Helper()
	overlay := t.TempDir()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(overlay, here)
	if err != nil {
		t.Fatal(err)
	}
	text := "resources:\n"
	for _, r := range append(resources, "namespace.yaml") {
		text += fmt.Sprintf("  - %s/%s\n", rel, r)
	}
	text += fmt.Sprintf("components: [%s/%s]\n", rel, name)
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = kustypes.LoadRestrictionsNone
	all, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all.Resources() {
		if r.GetKind() != kind {
			continue
		}
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, text)
	}
	if len(found) == 0 {
		t.Fatalf("component %s has no %s", name, kind)
	}
	return found
}

// opens reports whether the policies let a pod with this namespace and these labels reach a named port of the pods `to`.
func opens(t *testing.T, all []networkingv1.NetworkPolicy, to metav1.ObjectMeta, port, namespace string, from map[string]string) bool {
	t.Helper()
	selects := func(s *metav1.LabelSelector, of map[string]string) bool {
		got, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return s == nil || got.Matches(labels.Set(of))
	}
	held := false
	for _, p := range all {
		if p.Namespace != to.Namespace || !selects(&p.Spec.PodSelector, to.Labels) {
			continue
		}
		held = true
		for _, rule := range p.Spec.Ingress {
			if !slices.ContainsFunc(rule.Ports, func(q networkingv1.NetworkPolicyPort) bool { return q.Port.StrVal == port }) {
				continue
			}
			if len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(peer networkingv1.NetworkPolicyPeer) bool {
				return selects(peer.NamespaceSelector, map[string]string{"kubernetes.io/metadata.name": namespace}) && selects(peer.PodSelector, from)
			}) {
				return true
			}
		}
	}
	return !held
}

// TestNetworkPolicies: only clients that need it can reach each port, and the test covers every port of every pod.
func TestNetworkPolicies(t *testing.T) {
	var all []networkingv1.NetworkPolicy
	for _, text := range component(t, "network-policy", "NetworkPolicy") {
		var p networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict(text, &p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	controller, scheduler, node := find[appsv1.Deployment](t, "holdfast-controller"), find[appsv1.Deployment](t, "holdfast-scheduler"), find[appsv1.DaemonSet](t, "holdfast-node")
	at := func(namespace string, template corev1.PodTemplateSpec) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Labels: template.Labels}
	}
	gang := map[string]string{"holdfast.dev/gang": "g"}
	want := map[string]string{ // clients that may reach it: any, gangs, monitoring, or only kubelets
		"controller coordinator": "gang", "controller webhook": "gang any monitoring", "controller metrics": "monitoring", "controller health": "",
		"scheduler preview": "gang any monitoring", "scheduler https": "monitoring", "node metrics": "monitoring",
	}
	got := map[string]string{}
	for who, pod := range map[string]struct {
		of   metav1.ObjectMeta
		spec corev1.PodSpec
	}{
		"controller": {at(controller.Namespace, controller.Spec.Template), controller.Spec.Template.Spec},
		"scheduler":  {at(scheduler.Namespace, scheduler.Spec.Template), scheduler.Spec.Template.Spec},
		"node":       {at(node.Namespace, node.Spec.Template), node.Spec.Template.Spec},
	} {
		for _, port := range pod.spec.Containers[0].Ports {
			var may []string
			for name, open := range map[string]bool{
				"gang":       opens(t, all, pod.of, port.Name, "team", gang),
				"any":        opens(t, all, pod.of, port.Name, "team", nil),
				"monitoring": opens(t, all, pod.of, port.Name, "monitoring", nil),
			} {
				if open {
					may = append(may, name)
				}
			}
			slices.Sort(may)
			got[who+" "+port.Name] = strings.Join(may, " ")
		}
	}
	for port, may := range got {
		sorted := strings.Fields(want[port])
		slices.Sort(sorted)
		if w, reported := want[port]; !reported || strings.Join(sorted, " ") != may {
			t.Errorf("%s is open to %q, want %q", port, may, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("ports %v", got)
	}
}

// TestOurShareOfTheAPIServer: a FlowSchema names each account of the manifests. Requests for leases have a FlowSchema of their own.
func TestOurShareOfTheAPIServer(t *testing.T) {
	level := find[flowcontrolv1.PriorityLevelConfiguration](t, "holdfast")
	if level.Spec.Type != flowcontrolv1.PriorityLevelEnablementLimited || *level.Spec.Limited.NominalConcurrencyShares < 10 {
		t.Errorf("%+v", level.Spec)
	}
	served, order := map[string]bool{}, map[string]int32{}
	for _, obj := range rendered(t) {
		f, ok := obj.(*flowcontrolv1.FlowSchema)
		if !ok {
			continue
		}
		order[f.Name] = f.Spec.MatchingPrecedence
		if name := f.Spec.PriorityLevelConfiguration.Name; name != level.Name && name != "leader-election" {
			t.Errorf("%s names %s", f.Name, name)
		}
		for _, rule := range f.Spec.Rules {
			for _, s := range rule.Subjects {
				if f.Spec.PriorityLevelConfiguration.Name == level.Name {
					served[s.ServiceAccount.Namespace+"/"+s.ServiceAccount.Name] = true
				}
			}
		}
	}
	// The preview's account only proves the identity of a caller by its token, and sends no requests.
	for _, obj := range rendered(t) {
		if a, ok := obj.(*corev1.ServiceAccount); ok && a.Name != "holdfast-preview" && !served[a.Namespace+"/"+a.Name] {
			t.Errorf("account %s/%s has no share", a.Namespace, a.Name)
		}
	}
	if order["holdfast-leader-election"] >= order["holdfast"] {
		t.Error("leases stand in the line of all the rest")
	}
}

// TestAuditPolicy: kube-apiserver can read the file. The policy logs requests that remove something, and skips requests that are frequent.
func TestAuditPolicy(t *testing.T) {
	p, err := auditpolicy.LoadPolicyFromFile("apiserver/audit-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := auditpolicy.NewPolicyRuleEvaluator(p)
	for _, c := range []struct {
		by, verb, group, resource, sub, name string
		want                                 audit.Level
	}{
		{controllerAccount, "patch", "", "pods", "", "p", audit.LevelRequest},
		{controllerAccount, "create", "", "pods", "eviction", "p", audit.LevelRequest},
		{schedulerAccount, "create", "", "pods", "eviction", "p", audit.LevelRequest},
		{controllerAccount, "delete", "", "pods", "", "p", audit.LevelRequest},
		{nodeAccount, "patch", "", "nodes", "status", "n", audit.LevelRequest},
		{controllerAccount, "patch", "batch", "jobs", "status", "j", audit.LevelRequest},
		{controllerAccount, "patch", "batch.volcano.sh", "jobs", "status", "j", audit.LevelRequest},
		{controllerAccount, "patch", "jobset.x-k8s.io", "jobsets", "status", "j", audit.LevelRequest},
		{controllerAccount, "patch", "kubeflow.org", "pytorchjobs", "status", "j", audit.LevelRequest},
		{controllerAccount, "patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "holdfast", audit.LevelRequest},
		{controllerAccount, "patch", "holdfast.dev", "gangs", "status", "g", audit.LevelMetadata},
		{"tenant", "patch", "holdfast.dev", "gangs", "status", "g", audit.LevelRequest},
		{"tenant", "get", "", "secrets", "", "holdfast-certs", audit.LevelMetadata},
		{controllerAccount, "update", "", "secrets", "", "holdfast-certs", audit.LevelMetadata},
		{controllerAccount, "create", "authentication.k8s.io", "tokenreviews", "", "", audit.LevelNone},
		{controllerAccount, "update", "coordination.k8s.io", "leases", "", "holdfast-controller", audit.LevelNone},
		{controllerAccount, "watch", "", "pods", "", "", audit.LevelNone},
		{"kubernetes-admin", "delete", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", "holdfast-pod-keys", audit.LevelRequest},
	} {
		got := rules.EvaluatePolicyRule(
			authorizer.AttributesRecord{
				User:            &user.DefaultInfo{Name: c.by},
				Verb:            c.verb,
				APIGroup:        c.group,
				APIVersion:      "v1",
				Resource:        c.resource,
				Subresource:     c.sub,
				Namespace:       "holdfast-system",
				Name:            c.name,
				ResourceRequest: true,
			},
		)
		if got.Level != c.want {
			t.Errorf("%s %s %s/%s: %s, want %s", c.by, c.verb, c.resource, c.sub, got.Level, c.want)
		}
	}
}

// TestAuditPolicyKeepsWhoChangesAdmission: the audit log has every request that changes or deletes a policy of Holdfast, a binding or the
// webhook's configuration, of the base or of a component, by name or as part of a collection.
func TestAuditPolicyKeepsWhoChangesAdmission(t *testing.T) {
	p, err := auditpolicy.LoadPolicyFromFile("apiserver/audit-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := auditpolicy.NewPolicyRuleEvaluator(p)
	ours := admissionObjects(t)
	if len(ours) < 15 || !slices.Contains(ours, [2]string{"validatingadmissionpolicybindings", "holdfast-held-nodes"}) {
		t.Fatalf("these are not all that ships: %v", ours)
	}
	for _, o := range ours {
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			a := authorizer.AttributesRecord{
				User:            &user.DefaultInfo{Name: "kubernetes-admin"},
				Verb:            verb,
				APIGroup:        "admissionregistration.k8s.io",
				APIVersion:      "v1",
				Resource:        o[0],
				Name:            o[1],
				ResourceRequest: true,
			}
			if verb == "create" || verb == "deletecollection" { // the API server reads the name from the path
				a.Name = ""
			}
			if got := rules.EvaluatePolicyRule(a); got.Level != audit.LevelRequest {
				t.Errorf("%s %s %s: %s, want %s", verb, o[0], o[1], got.Level, audit.LevelRequest)
			}
		}
	}
}

// admissionObjects returns the resources and names of all objects in the manifests, components included, that decide about admission.
func admissionObjects(t *testing.T) (found [][2]string) {
	t.Helper()
	if err := filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, doc := range strings.Split(string(text), "\n---\n") {
			var o metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			switch o.Kind {
			case "ValidatingAdmissionPolicy":
				found = append(found, [2]string{"validatingadmissionpolicies", o.Name})
			case "ValidatingAdmissionPolicyBinding", "MutatingWebhookConfiguration":
				found = append(found, [2]string{strings.ToLower(o.Kind) + "s", o.Name})
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestMetricsAreScrapedByAccount: the controller may review a caller's token and rights. The manifests have a role for accounts that
// scrape.
func TestMetricsAreScrapedByAccount(t *testing.T) {
	role, view := find[rbacv1.ClusterRole](t, "holdfast-controller"), find[rbacv1.ClusterRole](t, "holdfast-metrics-view")
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return fmt.Sprint(r.APIGroups, r.Resources, r.Verbs) == "[authorization.k8s.io] [subjectaccessreviews] [create]"
	}) {
		t.Error("the controller may not ask who may read metrics")
	}
	if fmt.Sprint(view.Rules[0].NonResourceURLs, view.Rules[0].Verbs) != "[/metrics] [get]" {
		t.Errorf("%+v", view.Rules)
	}
	service, d := find[corev1.Service](t, "holdfast-metrics"), find[appsv1.Deployment](t, "holdfast-controller")
	for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == "metrics" && (p.ContainerPort != service.Spec.Ports[0].Port || service.Spec.ClusterIP != corev1.ClusterIPNone) {
			t.Errorf("port %d, Service %+v", p.ContainerPort, service.Spec)
		}
	}
}

// TestNodeComponents: on GKE the folder of the library is mounted beside the others. With the other component NVIDIA's runtime mounts the
// library, and the manifest mounts nothing over it.
func TestNodeComponents(t *testing.T) {
	spec := func(name string) corev1.PodSpec {
		d := &appsv1.DaemonSet{}
		if err := yaml.UnmarshalStrict(component(t, name, "DaemonSet", "node")[0], d); err != nil {
			t.Fatal(err)
		}
		return d.Spec.Template.Spec
	}
	gke := spec("node-gke")
	at := slices.IndexFunc(gke.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/host/home/kubernetes/bin/nvidia" })
	if at < 0 || !gke.Containers[0].VolumeMounts[at].ReadOnly || !slices.ContainsFunc(gke.Volumes, func(v corev1.Volume) bool {
		return v.Name == gke.Containers[0].VolumeMounts[at].Name && v.HostPath != nil && v.HostPath.Path == "/home/kubernetes/bin/nvidia"
	}) {
		t.Errorf("on GKE: %+v", gke)
	}
	class := spec("node-runtime-class")
	for _, want := range []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, {Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "utility"}} {
		if !slices.Contains(class.Containers[0].Env, want) {
			t.Errorf("%+v is not in %+v", want, class.Containers[0].Env)
		}
	}
	if class.RuntimeClassName == nil || *class.RuntimeClassName != "nvidia" {
		t.Errorf("runtime class %v", class.RuntimeClassName)
	}
}
