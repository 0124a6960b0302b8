package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type world struct{}

func (world) Namespace(name string) bool { return name == "train" }

func (world) Service(namespace, name string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	port := corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}
	svc.Spec.Ports = []corev1.ServicePort{port}
	switch namespace + "/" + name {
	case "train/web":
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.0.0.5", []string{"10.0.0.5"}
	case "train/peers", "train/early":
		svc.Spec.ClusterIP = corev1.ClusterIPNone
		svc.Spec.PublishNotReadyAddresses = name == "early"
	case "train/away":
		svc.Spec.Type, svc.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	default:
		return nil
	}
	return svc
}

func (world) Slices(string, string) []*discoveryv1.EndpointSlice {
	yes, no, one := true, false, "one"
	return []*discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
		{Addresses: []string{"10.1.0.1"}, Hostname: &one, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
		{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}},
	}}}
}

func TestAnswer(t *testing.T) {
	for _, tc := range []struct{ kind, name, want string }{
		{"A", "web.train.svc.cluster.local.", "NOERROR 10.0.0.5"},
		{"A", "WEB.train.svc.Cluster.Local.", "NOERROR 10.0.0.5"},
		{"AAAA", "web.train.svc.cluster.local.", "NOERROR"},
		{"A", "gone.train.svc.cluster.local.", "NXDOMAIN"},
		{"A", "peers.train.svc.cluster.local.", "NOERROR 10.1.0.1 10.1.0.2"},
		{"A", "early.train.svc.cluster.local.", "NOERROR 10.1.0.1 10.1.0.2 10.1.0.3"},
		{"A", "one.peers.train.svc.cluster.local.", "NOERROR 10.1.0.1"},
		{"A", "10-1-0-2.peers.train.svc.cluster.local.", "NOERROR 10.1.0.2"},
		{"A", "two.peers.train.svc.cluster.local.", "NXDOMAIN"},
		{"A", "one.web.train.svc.cluster.local.", "NXDOMAIN"},
		{"SRV", "_http._tcp.web.train.svc.cluster.local.", "NOERROR 80:web.train.svc.cluster.local."},
		{"SRV", "_http._tcp.peers.train.svc.cluster.local.", "NOERROR 8080:one.peers.train.svc.cluster.local. 8080:10-1-0-2.peers.train.svc.cluster.local."},
		{"SRV", "_grpc._tcp.web.train.svc.cluster.local.", "NXDOMAIN"},
		{"A", "away.train.svc.cluster.local.", "NOERROR example.com."},
		{"A", "train.svc.cluster.local.", "NOERROR"},
		{"A", "nowhere.svc.cluster.local.", "NXDOMAIN"},
		{"A", "svc.cluster.local.", "NOERROR"},
		{"A", "10-1-0-9.train.pod.cluster.local.", "NOERROR 10.1.0.9"},
		{"A", "x.train.pod.cluster.local.", "NXDOMAIN"},
		{"A", "cluster.local.", "NOERROR"},
		{"A", "pypi.org.", "NXDOMAIN"},
		{"A", "web.train.svc.cluster.local.cluster.local.", "NXDOMAIN"},
	} {
		q := dns.Question{Name: tc.name, Qtype: dns.StringToType[tc.kind], Qclass: dns.ClassINET}
		answers, _, rcode := Answer(q, "cluster.local", world{})
		got := []string{dns.RcodeToString[rcode]}
		for _, rr := range answers {
			switch rr := rr.(type) {
			case *dns.A:
				got = append(got, rr.A.String())
			case *dns.CNAME:
				got = append(got, rr.Target)
			case *dns.SRV:
				got = append(got, fmt.Sprintf("%d:%s", rr.Port, rr.Target))
			}
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s %s: got %s, want %s", tc.kind, tc.name, s, tc.want)
		}
	}
}
