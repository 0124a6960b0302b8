package dns

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// ttl is short: endpoints of a training job come and go.
const ttl = 5

// View has the objects from which answers are made.
type View interface {
	// Service returns a Service; nil if there is none.
	Service(namespace, name string) *corev1.Service
	// Slices are the EndpointSlices of a Service.
	Slices(namespace, service string) []*discoveryv1.EndpointSlice
	// Namespace reports whether any object is known in a namespace.
	Namespace(name string) bool
}

// Answer answers one query about names below domain ("cluster.local"), by the Kubernetes DNS specification 1.1. Other names are refused:
// the cluster cannot reach other name servers.
func Answer(q dns.Question, domain string, v View) (answers, extra []dns.RR, rcode int) {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	zone, ok := strings.CutSuffix(name, "."+domain)
	if name == domain {
		return nil, nil, dns.RcodeSuccess
	}
	if !ok {
		return nil, nil, dns.RcodeNameError
	}
	labels := strings.Split(zone, ".")
	slices.Reverse(labels) // svc, namespace, service, then host or protocol
	if labels[0] == "dns-version" && q.Qtype == dns.TypeTXT {
		return []dns.RR{&dns.TXT{Hdr: header(q, dns.TypeTXT), Txt: []string{"1.1.0"}}}, nil, dns.RcodeSuccess
	}
	if labels[0] == "pod" && len(labels) == 3 {
		return podAnswer(q, labels[2])
	}
	if labels[0] != "svc" || len(labels) > 5 {
		return nil, nil, dns.RcodeNameError
	}
	if len(labels) < 3 {
		if len(labels) == 2 && !v.Namespace(labels[1]) {
			return nil, nil, dns.RcodeNameError
		}
		return nil, nil, dns.RcodeSuccess
	}
	svc := v.Service(labels[1], labels[2])
	if svc == nil {
		return nil, nil, dns.RcodeNameError
	}
	r := &reply{q: q, domain: domain, svc: svc, slices: v.Slices(labels[1], labels[2])}
	return r.answer(labels[3:])
}

// podAnswer serves 10-1-2-3.NAMESPACE.pod: the name contains the address.
func podAnswer(q dns.Question, dashed string) ([]dns.RR, []dns.RR, int) {
	ip := net.ParseIP(strings.ReplaceAll(dashed, "-", "."))
	if ip == nil || ip.To4() == nil {
		return nil, nil, dns.RcodeNameError
	}
	if q.Qtype != dns.TypeA {
		return nil, nil, dns.RcodeSuccess
	}
	return []dns.RR{&dns.A{Hdr: header(q, dns.TypeA), A: ip}}, nil, dns.RcodeSuccess
}

type reply struct {
	q      dns.Question
	domain string
	svc    *corev1.Service
	slices []*discoveryv1.EndpointSlice
}

// host is one endpoint of a headless Service with its name.
type host struct {
	name string
	ip   net.IP
}

func (r *reply) answer(rest []string) ([]dns.RR, []dns.RR, int) {
	if r.svc.Spec.Type == corev1.ServiceTypeExternalName {
		to := dns.Fqdn(r.svc.Spec.ExternalName)
		return []dns.RR{&dns.CNAME{Hdr: header(r.q, dns.TypeCNAME), Target: to}}, nil, dns.RcodeSuccess
	}
	switch {
	case len(rest) == 2: // _port._protocol.service
		return r.srv(strings.TrimPrefix(rest[1], "_"), strings.TrimPrefix(rest[0], "_"))
	case len(rest) == 1:
		if r.svc.Spec.ClusterIP != corev1.ClusterIPNone {
			return nil, nil, dns.RcodeNameError
		}
		var ips []net.IP
		for _, h := range r.hosts() {
			if h.name == rest[0] {
				ips = append(ips, h.ip)
			}
		}
		if len(ips) == 0 {
			return nil, nil, dns.RcodeNameError
		}
		return addresses(r.q, ips), nil, dns.RcodeSuccess
	}
	if r.svc.Spec.ClusterIP != corev1.ClusterIPNone {
		var ips []net.IP
		for _, a := range r.svc.Spec.ClusterIPs {
			ips = append(ips, net.ParseIP(a))
		}
		return addresses(r.q, ips), nil, dns.RcodeSuccess
	}
	var ips []net.IP
	for _, h := range r.hosts() {
		ips = append(ips, h.ip)
	}
	if len(ips) == 0 {
		return nil, nil, dns.RcodeNameError
	}
	return addresses(r.q, ips), nil, dns.RcodeSuccess
}

// hosts are the Service's published endpoints, each once, sorted.
func (r *reply) hosts() []host {
	seen := map[string]bool{}
	var out []host
	for _, s := range r.slices {
		for _, e := range s.Endpoints {
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if (!ready && !r.svc.Spec.PublishNotReadyAddresses) || len(e.Addresses) == 0 || seen[e.Addresses[0]] {
				continue
			}
			seen[e.Addresses[0]] = true
			name := strings.NewReplacer(".", "-", ":", "-").Replace(e.Addresses[0])
			if e.Hostname != nil && *e.Hostname != "" {
				name = *e.Hostname
			}
			out = append(out, host{name: name, ip: net.ParseIP(e.Addresses[0])})
		}
	}
	slices.SortFunc(out, func(a, b host) int { return strings.Compare(a.ip.String(), b.ip.String()) })
	return out
}

func (r *reply) srv(port, protocol string) (answers, extra []dns.RR, rcode int) {
	base := fmt.Sprintf("%s.%s.svc.%s.", r.svc.Name, r.svc.Namespace, r.domain)
	for _, p := range r.svc.Spec.Ports {
		if !strings.EqualFold(string(p.Protocol), protocol) || p.Name != port {
			continue
		}
		if r.svc.Spec.ClusterIP != corev1.ClusterIPNone {
			answers = append(answers, &dns.SRV{Hdr: header(r.q, dns.TypeSRV), Port: uint16(p.Port), Weight: 100, Target: base})
			continue
		}
		number := uint16(p.Port)
		if p.TargetPort.IntValue() > 0 {
			number = uint16(p.TargetPort.IntValue())
		}
		for _, h := range r.hosts() {
			target := h.name + "." + base
			answers = append(answers, &dns.SRV{Hdr: header(r.q, dns.TypeSRV), Port: number, Weight: 100, Target: target})
			extra = append(extra, &dns.A{Hdr: dns.RR_Header{Name: target, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}, A: h.ip})
		}
	}
	if len(answers) == 0 {
		return nil, nil, dns.RcodeNameError
	}
	if r.q.Qtype != dns.TypeSRV {
		return nil, nil, dns.RcodeSuccess
	}
	return answers, extra, dns.RcodeSuccess
}

func addresses(q dns.Question, ips []net.IP) []dns.RR {
	var out []dns.RR
	for _, ip := range ips {
		v4 := ip.To4()
		switch {
		case v4 != nil && q.Qtype == dns.TypeA:
			out = append(out, &dns.A{Hdr: header(q, dns.TypeA), A: v4})
		case v4 == nil && q.Qtype == dns.TypeAAAA:
			out = append(out, &dns.AAAA{Hdr: header(q, dns.TypeAAAA), AAAA: ip})
		}
	}
	return out
}

func header(q dns.Question, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: q.Name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}
