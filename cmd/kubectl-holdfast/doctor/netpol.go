package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// end is a pod at one end of a connection, or an address outside of the cluster (no namespace).
type end struct {
	namespace string
	labels    labels.Set
	// of are the labels of the namespace.
	of labels.Set
}

// port is the port that a connection goes to.
type port struct {
	protocol corev1.Protocol
	number   int32
	name     string
}

// flow is a connection that Holdfast or its jobs need.
type flow struct {
	from, to end
	port     port
	what     string
	// minor: only what users run may need it.
	minor bool
}

// networkPolicies checks the connections that Holdfast needs against the NetworkPolicies of both namespaces.
func networkPolicies(f *Facts, j *judgement) {
	if f.Policies.Unread != "" {
		j.unread("NetworkPolicies of namespace "+f.Namespace, f.Policies.Unread)
	}
	if f.OwnPolicies.Unread != "" && f.Serves {
		j.unread("NetworkPolicies of namespace "+f.own(), f.OwnPolicies.Unread)
	}
	all := slices.Concat(f.OwnPolicies.Value, f.Policies.Value)
	if len(all) == 0 {
		if len(j.found) == 0 {
			j.pass("neither namespace %s nor namespace %s has a NetworkPolicy", f.Namespace, f.own())
		}
		return
	}
	if f.Namespaces.Unread != "" {
		j.unread("labels of namespaces", f.Namespaces.Unread)
		return
	}
	for _, w := range f.flows() {
		by := blocked(all, w)
		switch {
		case by == "":
		case w.minor:
			j.warn("compare the policy with examples/network-policy.yaml", "%s blocks %s", by, w.what)
		default:
			j.fail("compare the policy with examples/network-policy.yaml and with component manifests/network-policy", "%s blocks %s", by, w.what)
		}
	}
	j.pass("%d NetworkPolicies were compared with the connections that Holdfast needs", len(all))
}

// flows are the connections that Holdfast and its jobs need.
func (f *Facts) flows() []flow {
	pod := func(namespace string, own labels.Set) end {
		e := end{namespace: namespace, labels: own, of: labels.Set{corev1.LabelMetadataName: namespace}}
		if n := find(f.Namespaces.Value, "", namespace); n != nil && n.Labels != nil {
			e.of = n.Labels
		}
		return e
	}
	rank := pod(f.Namespace, labels.Set{v1alpha1.LabelGang: "any"})
	controller := pod(f.own(), labels.Set{"app.kubernetes.io/name": controllerName, "app.kubernetes.io/part-of": "holdfast"})
	dns := pod(metav1.NamespaceSystem, labels.Set{"k8s-app": dnsService})
	return []flow{
		{end{}, controller, port{corev1.ProtocolTCP, webhookPort, "webhook"}, "the API server from admission (port 9443 of holdfast-controller)", false},
		{rank, controller, port{corev1.ProtocolTCP, coordinatorPort, "coordinator"}, "pods of gangs from the coordinator (port 7443 of holdfast-controller)", false},
		{rank, rank, port{corev1.ProtocolTCP, 29500, ""}, "pods of a gang from one another (port 29500)", false},
		{rank, rank, port{corev1.ProtocolTCP, 50000, ""}, "pods of a gang from one another on any port (such as 50000, which NCCL may choose)", false},
		{rank, dns, port{corev1.ProtocolUDP, 53, "dns"}, "pods of gangs from the cluster's DNS", true},
	}
}

// blocked names the policy that keeps a connection from either end; empty: both ends allow it.
func blocked(policies []networkingv1.NetworkPolicy, w flow) string {
	var into, out []string
	in, outgoing := false, false
	for i := range policies {
		p := &policies[i]
		if p.Namespace == w.to.namespace && selects(&p.Spec.PodSelector, w.to.labels) && isFor(p, networkingv1.PolicyTypeIngress) {
			into = append(into, p.Name)
			for _, r := range p.Spec.Ingress {
				in = in || ports(r.Ports, w.port) && peers(r.From, p.Namespace, w.from)
			}
		}
		if w.from.namespace != "" && p.Namespace == w.from.namespace && selects(&p.Spec.PodSelector, w.from.labels) &&
			isFor(p, networkingv1.PolicyTypeEgress) {
			out = append(out, p.Name)
			for _, r := range p.Spec.Egress {
				outgoing = outgoing || ports(r.Ports, w.port) && peers(r.To, p.Namespace, w.to)
			}
		}
	}
	switch {
	case len(into) > 0 && !in:
		return fmt.Sprintf("NetworkPolicy %s/%s", w.to.namespace, some(into))
	case len(out) > 0 && !outgoing:
		return fmt.Sprintf("NetworkPolicy %s/%s", w.from.namespace, some(out))
	}
	return ""
}

// isFor reports whether a policy restricts a direction; without types it restricts ingress, and egress if it has such rules.
func isFor(p *networkingv1.NetworkPolicy, t networkingv1.PolicyType) bool {
	if len(p.Spec.PolicyTypes) > 0 {
		return slices.Contains(p.Spec.PolicyTypes, t)
	}
	return t == networkingv1.PolicyTypeIngress || len(p.Spec.Egress) > 0
}

func selects(selector *metav1.LabelSelector, of labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(of)
}

// ports reports whether a rule's ports have the port; a rule without ports has all.
func ports(rules []networkingv1.NetworkPolicyPort, p port) bool {
	return len(rules) == 0 || slices.ContainsFunc(rules, func(r networkingv1.NetworkPolicyPort) bool {
		if protocol := r.Protocol; protocol != nil && *protocol != p.protocol || protocol == nil && p.protocol != corev1.ProtocolTCP {
			return false
		}
		switch {
		case r.Port == nil:
			return true
		case r.Port.Type == intstr.String:
			return p.name != "" && r.Port.StrVal == p.name
		case r.EndPort != nil:
			return r.Port.IntVal <= p.number && p.number <= *r.EndPort
		}
		return r.Port.IntVal == p.number
	})
}

// peers reports whether a rule's peers have an end. Where addresses are meant is not known, so blocks of addresses count as allowed for
// what is outside of the cluster, and not for pods.
func peers(rules []networkingv1.NetworkPolicyPeer, own string, e end) bool {
	return len(rules) == 0 || slices.ContainsFunc(rules, func(r networkingv1.NetworkPolicyPeer) bool {
		switch {
		case r.IPBlock != nil:
			return e.namespace == "" || r.IPBlock.CIDR == "0.0.0.0/0" || r.IPBlock.CIDR == "::/0"
		case e.namespace == "":
			return false
		case r.NamespaceSelector == nil && e.namespace != own:
			return false
		case r.NamespaceSelector != nil && !selects(r.NamespaceSelector, e.of):
			return false
		}
		return r.PodSelector == nil || selects(r.PodSelector, e.labels)
	})
}
