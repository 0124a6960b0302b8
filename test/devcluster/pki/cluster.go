package pki

import (
	"fmt"
	"os"
	"time"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// WriteCluster issues everything that a cluster needs: authorities, serving
// and client certificates and kubeconfigs, under the places that layout names.
func WriteCluster(s *layout.Spec, now time.Time) error {
	dir := s.Path("pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := NewCA("holdfast-dev "+s.Name, now)
	if err != nil {
		return err
	}
	if err := writeAuthorities(s, ca, dir, now); err != nil {
		return err
	}
	for _, u := range users(s) {
		if err := u.write(s, ca, now); err != nil {
			return err
		}
	}
	for i := range s.Nodes {
		if err := writeNode(s, ca, i, now); err != nil {
			return fmt.Errorf("certificates of node %s: %w", s.NodeName(i), err)
		}
	}
	return nil
}

func writeAuthorities(s *layout.Spec, ca *CA, dir string, now time.Time) error {
	caKey, err := ca.KeyPEM()
	if err != nil {
		return err
	}
	if err := (Pair{Cert: ca.Cert(), Key: caKey}).Write(dir, "ca"); err != nil {
		return err
	}
	serving, err := ca.Issue("kube-apiserver", nil, []string{
		"localhost", "127.0.0.1", s.ControlIP(), s.KubernetesServiceIP(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + layout.ClusterDomain,
	}, now)
	if err != nil {
		return err
	}
	kubeletClient, err := ca.Issue("kube-apiserver-kubelet-client", []string{"system:masters"}, nil, now)
	if err != nil {
		return err
	}
	tokens, err := NewKeyPair()
	if err != nil {
		return err
	}
	frontCA, err := NewCA("holdfast-dev front proxy "+s.Name, now)
	if err != nil {
		return err
	}
	front, err := frontCA.Issue("front-proxy-client", nil, nil, now)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.PKI("front-proxy-ca.crt"), frontCA.Cert(), 0o644); err != nil {
		return err
	}
	for base, p := range map[string]Pair{"apiserver": serving, "kubelet-client": kubeletClient, "sa": tokens, "front-proxy": front} {
		if err := p.Write(dir, base); err != nil {
			return err
		}
	}
	return nil
}

type user struct {
	name   string
	groups []string
	file   string
}

func users(s *layout.Spec) []user {
	return []user{
		{"holdfast-dev-admin", []string{"system:masters"}, s.Kubeconfig()},
		{"system:kube-controller-manager", nil, s.Path("pki", "controller-manager.kubeconfig")},
		{"system:kube-scheduler", nil, s.Path("pki", "scheduler.kubeconfig")},
		{"system:kube-proxy", nil, s.Path("pki", "proxy.kubeconfig")},
		{"holdfast-dev-dns", nil, s.Path("pki", "dns.kubeconfig")},
	}
}

func (u user) write(s *layout.Spec, ca *CA, now time.Time) error {
	p, err := ca.Issue(u.name, u.groups, nil, now)
	if err != nil {
		return err
	}
	return os.WriteFile(u.file, ca.Kubeconfig(s.Name, s.APIURL(), u.name, p), 0o600)
}

// writeNode puts a node's own files where its /etc will be.
func writeNode(s *layout.Spec, ca *CA, i int, now time.Time) error {
	dir := s.NodePath(i, "etc", "kubernetes")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := s.NodeName(i)
	client, err := ca.Issue("system:node:"+name, []string{"system:nodes"}, nil, now)
	if err != nil {
		return err
	}
	serving, err := ca.Issue("system:node:"+name, []string{"system:nodes"}, []string{name, s.NodeIP(i), "127.0.0.1"}, now)
	if err != nil {
		return err
	}
	if err := serving.Write(dir, "kubelet"); err != nil {
		return err
	}
	proxy, err := ca.Issue("system:kube-proxy", nil, nil, now)
	if err != nil {
		return err
	}
	for file, content := range map[string][]byte{
		"ca.crt":             ca.Cert(),
		"kubelet.kubeconfig": ca.Kubeconfig(s.Name, s.APIURL(), "system:node:"+name, client),
		"proxy.kubeconfig":   ca.Kubeconfig(s.Name, s.APIURL(), "system:kube-proxy", proxy),
	} {
		if err := os.WriteFile(dir+"/"+file, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
