package supervise

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// bootstrap creates the objects that every cluster has from the start.
func bootstrap(ctx context.Context, c kubernetes.Interface, s *layout.Spec) error {
	svc, slice := dnsService(s)
	role, binding := dnsRole()
	creates := []func() error{
		func() error {
			_, err := c.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.CoreV1().Services(svc.Namespace).Create(ctx, svc, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
			return err
		},
	}
	for _, o := range offers(s) {
		creates = append(creates, func() error {
			_, err := c.StorageV1().StorageClasses().Create(ctx, o.storageClass(), metav1.CreateOptions{})
			return err
		})
	}
	for _, create := range creates {
		if err := create(); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

func dnsService(s *layout.Spec) (*corev1.Service, *discoveryv1.EndpointSlice) {
	const name = "kube-dns"
	udp, tcp := corev1.ProtocolUDP, corev1.ProtocolTCP
	port, ready := int32(53), true
	udpName, tcpName := "dns", "dns-tcp"
	labels := map[string]string{"k8s-app": name, "kubernetes.io/name": "holdfast-dev-dns"}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem, Labels: labels},
		Spec: corev1.ServiceSpec{
			ClusterIP: s.DNSIP(),
			Ports: []corev1.ServicePort{
				{Name: udpName, Port: port, Protocol: udp, TargetPort: intstr.FromInt32(port)},
				{Name: tcpName, Port: port, Protocol: tcp, TargetPort: intstr.FromInt32(port)},
			},
		},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{s.ControlIP()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports: []discoveryv1.EndpointPort{
			{Name: &udpName, Port: &port, Protocol: &udp}, {Name: &tcpName, Port: &port, Protocol: &tcp},
		},
	}
	return svc, slice
}

func dnsRole() (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding) {
	const name = "holdfast-dev-dns"
	read := []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: read},
			{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: read},
		},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
	return role, binding
}

// nodesReady returns an error with a real node that is not Ready with its devices yet.
func nodesReady(ctx context.Context, c kubernetes.Interface, s *layout.Spec) (int, error) {
	for i := range s.Nodes {
		n, err := c.CoreV1().Nodes().Get(ctx, s.NodeName(i), metav1.GetOptions{})
		if err != nil {
			return i, err
		}
		if !isReady(n) {
			return i, fmt.Errorf("node %s is not Ready", n.Name)
		}
		have := n.Status.Allocatable[corev1.ResourceName(layout.GPUResource)]
		if have.Value() != int64(s.GPUsPerNode) {
			return i, fmt.Errorf("node %s offers %d of %d GPUs", n.Name, have.Value(), s.GPUsPerNode)
		}
	}
	return 0, nil
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
