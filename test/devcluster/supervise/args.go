package supervise

import (
	"fmt"

	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/node"
)

const (
	etcdClient = "http://127.0.0.1:2379"
	etcdPeer   = "http://127.0.0.1:2380"
)

// command is one program of the control plane.
type command struct {
	name string
	args []string
}

func etcdCommand(s *layout.Spec) command {
	return command{"etcd", []string{s.Path("etcd"), etcdClient, etcdPeer}}
}

func apiServerCommand(s *layout.Spec) command {
	return command{"kube-apiserver", append([]string{
		"--etcd-servers=" + etcdClient,
		"--bind-address=" + s.ControlIP(), "--advertise-address=" + s.ControlIP(), fmt.Sprintf("--secure-port=%d", layout.APIPort),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-cluster-ip-range=" + s.ServiceCIDR(),
		"--service-account-issuer=https://kubernetes.default.svc." + layout.ClusterDomain,
		"--service-account-key-file=" + s.PKI("sa.key"), "--service-account-signing-key-file=" + s.PKI("sa.key"),
		"--client-ca-file=" + s.PKI("ca.crt"),
		"--tls-cert-file=" + s.PKI("apiserver.crt"), "--tls-private-key-file=" + s.PKI("apiserver.key"),
		"--kubelet-client-certificate=" + s.PKI("kubelet-client.crt"), "--kubelet-client-key=" + s.PKI("kubelet-client.key"),
		"--kubelet-certificate-authority=" + s.PKI("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + s.PKI("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + s.PKI("front-proxy.crt"), "--proxy-client-key-file=" + s.PKI("front-proxy.key"),
	}, s.ExtraArgs["kube-apiserver"]...)}
}

func controllerManagerCommand(s *layout.Spec) command {
	config := s.Path("pki", "controller-manager.kubeconfig")
	return command{"kube-controller-manager", append([]string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
		"--service-account-private-key-file=" + s.PKI("sa.key"), "--root-ca-file=" + s.PKI("ca.crt"),
		"--cluster-signing-cert-file=" + s.PKI("ca.crt"), "--cluster-signing-key-file=" + s.PKI("ca.key"),
		"--requestheader-client-ca-file=" + s.PKI("front-proxy-ca.crt"), "--client-ca-file=" + s.PKI("ca.crt"),
		"--cert-dir=" + s.Path("pki", "kcm"), "--kube-api-qps=300", "--kube-api-burst=600",
	}, s.ExtraArgs["kube-controller-manager"]...)}
}

func schedulerCommand(s *layout.Spec) command {
	config := s.Path("pki", "scheduler.kubeconfig")
	return command{"kube-scheduler", append([]string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--requestheader-client-ca-file=" + s.PKI("front-proxy-ca.crt"), "--client-ca-file=" + s.PKI("ca.crt"),
		"--bind-address=127.0.0.1", "--leader-elect=false", "--cert-dir=" + s.Path("pki", "scheduler"),
	}, s.ExtraArgs["kube-scheduler"]...)}
}

// routerProxyCommand serves Service addresses to the API server and to the machine. It uses the first node's Node object, as it has none of
// its own.
func routerProxyCommand(s *layout.Spec) command {
	return command{"kube-proxy", []string{"--config=" + s.Path("pki", "proxy.json")}}
}

func routerProxyConfig(s *layout.Spec) string {
	first := s.NodeName(0)
	if s.Nodes == 0 {
		first = s.SimNodeName(0)
	}
	return node.ProxyConfig(s, first, s.ControlIP(), s.Path("pki", "proxy.kubeconfig"))
}
