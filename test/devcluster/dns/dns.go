// Package dns is the name server of a dev cluster. The server watches Services and their endpoints, and resolves
// Services, host names of pods behind headless Services, and ports (SRV). No name outside the cluster is resolved.
package dns

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Start serves on addr, UDP and TCP, once it knows the cluster's objects.
func Start(ctx context.Context, config *rest.Config, domain, addr string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	v, synced, err := watch(ctx, client)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	streams, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	go func() {
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return
		}
		h := handler(domain, v)
		for _, s := range []*dns.Server{{PacketConn: packets, Handler: h}, {Listener: streams, Handler: h}} {
			go func() {
				if err := s.ActivateAndServe(); err != nil {
					fmt.Fprintln(os.Stderr, "dns:", err)
				}
			}()
		}
	}()
	return nil
}

func handler(domain string, v View) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, req *dns.Msg) {
		resp := new(dns.Msg)
		resp.SetReply(req)
		resp.Authoritative = true
		resp.RecursionAvailable = true // some resolvers reject a response without it
		if len(req.Question) == 1 {
			resp.Answer, resp.Extra, resp.Rcode = Answer(req.Question[0], domain, v)
		} else {
			resp.Rcode = dns.RcodeFormatError
		}
		if w.RemoteAddr().Network() == "udp" {
			size := dns.MinMsgSize
			if o := req.IsEdns0(); o != nil {
				size = int(o.UDPSize())
			}
			resp.Truncate(size)
		}
		if err := w.WriteMsg(resp); err != nil {
			fmt.Fprintln(os.Stderr, "dns: answering:", err)
		}
	})
}

const byService = "service"

// objects is a View of watched objects.
type objects struct{ services, slices cache.Indexer }

func watch(ctx context.Context, client kubernetes.Interface) (View, []cache.InformerSynced, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services().Informer()
	slices := factory.Discovery().V1().EndpointSlices().Informer()
	if err := slices.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok {
			return nil, fmt.Errorf("indexing a %T as an EndpointSlice", obj)
		}
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		return nil, nil, err
	}
	factory.Start(ctx.Done())
	return &objects{services: services.GetIndexer(), slices: slices.GetIndexer()},
		[]cache.InformerSynced{services.HasSynced, slices.HasSynced}, nil
}

func (o *objects) Service(namespace, name string) *corev1.Service {
	obj, ok, err := o.services.GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	svc, _ := obj.(*corev1.Service)
	return svc
}

func (o *objects) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	objs, err := o.slices.ByIndex(byService, namespace+"/"+service)
	if err != nil {
		return nil
	}
	var out []*discoveryv1.EndpointSlice
	for _, obj := range objs {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			out = append(out, s)
		}
	}
	return out
}

func (o *objects) Namespace(name string) bool {
	keys, err := o.services.IndexKeys(cache.NamespaceIndex, name)
	return err == nil && len(keys) > 0
}
