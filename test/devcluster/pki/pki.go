// Package pki issues the certificate authorities, certificates and kubeconfigs of one dev cluster. All certificates are
// valid for 30 days.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

const validity = 30 * 24 * time.Hour

// issuer writes a cluster's files, valid from an hour before now.
type issuer struct {
	s   *layout.Spec
	now time.Time
	ca  pair
}

// pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// WriteCluster issues everything that a cluster needs: authorities, serving and client certificates and kubeconfigs, at the paths of
// layout.
func WriteCluster(s *layout.Spec, now time.Time) (err error) {
	w := &issuer{s: s, now: now}
	if w.ca, err = w.authority("holdfast-dev " + s.Name); err != nil {
		return err
	}
	if err := w.controlPlane(s.Path("pki")); err != nil {
		return err
	}
	for user, file := range map[string]string{
		"system:kube-controller-manager": s.PKI("controller-manager.kubeconfig"),
		"system:kube-scheduler":          s.PKI("scheduler.kubeconfig"),
		"system:kube-proxy":              s.PKI("proxy.kubeconfig"),
		"holdfast-dev-dns":               s.PKI("dns.kubeconfig"),
	} {
		if err := w.kubeconfig(file, user); err != nil {
			return err
		}
	}
	if err := w.kubeconfig(s.Kubeconfig(), "holdfast-dev-admin", "system:masters"); err != nil {
		return err
	}
	for i := range s.Nodes {
		if err := w.node(i); err != nil {
			return fmt.Errorf("certificates of node %s: %w", s.NodeName(i), err)
		}
	}
	return nil
}

func (w *issuer) controlPlane(dir string) error {
	front, err := w.authority("holdfast-dev front proxy " + w.s.Name)
	if err != nil {
		return err
	}
	tokens, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(dir, 0o700),
		w.ca.write(dir, "ca"),
		certutil.WriteCert(filepath.Join(dir, "front-proxy-ca.crt"), front.pem()),
		keyutil.WriteKey(filepath.Join(dir, "sa.key"), tokens),
		w.write(dir, "apiserver", w.ca, "kube-apiserver", nil, "localhost", "127.0.0.1", w.s.ControlIP(), w.s.KubernetesServiceIP(),
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+layout.ClusterDomain),
		w.write(dir, "kubelet-client", w.ca, "kube-apiserver-kubelet-client", []string{"system:masters"}),
		w.write(dir, "front-proxy", front, "front-proxy-client", nil),
	)
}

// node writes a node's own files to what becomes its /etc.
func (w *issuer) node(i int) error {
	dir, name := w.s.NodePath(i, "etc", "kubernetes"), w.s.NodeName(i)
	if err := os.MkdirAll(dir, 0o755); err != nil { // containers of the node read it
		return err
	}
	return errors.Join(
		certutil.WriteCert(filepath.Join(dir, "ca.crt"), w.ca.pem()),
		w.write(dir, "kubelet", w.ca, "system:node:"+name, []string{"system:nodes"}, name, w.s.NodeIP(i), "127.0.0.1"),
		w.kubeconfig(dir+"/kubelet.kubeconfig", "system:node:"+name, "system:nodes"),
		w.kubeconfig(dir+"/proxy.kubeconfig", "system:kube-proxy"),
	)
}

func (w *issuer) authority(name string) (p pair, err error) {
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return p, err
	}
	p.cert, err = certutil.NewSelfSignedCACert(certutil.Config{CommonName: name, NotBefore: w.now.Add(-time.Hour)}, p.key)
	return p, err
}

// issue signs a certificate for a user or server; hosts are names and addresses.
func (w *issuer) issue(by pair, name string, groups []string, hosts ...string) (p pair, err error) {
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return p, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return p, err
	}
	c := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    w.now.Add(-time.Hour),
		NotAfter:     w.now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by.cert, p.key.Public(), by.key)
	if err != nil {
		return p, fmt.Errorf("signing certificate of %s: %w", name, err)
	}
	p.cert, err = x509.ParseCertificate(der)
	return p, err
}

func (p pair) pem() []byte {
	text, _ := certutil.EncodeCertificates(p.cert) // into memory
	return text
}

func (p pair) write(dir, base string) error {
	key, err := keyutil.MarshalPrivateKeyToPEM(p.key)
	if err != nil {
		return err
	}
	return errors.Join(certutil.WriteCert(filepath.Join(dir, base+".crt"), p.pem()), keyutil.WriteKey(filepath.Join(dir, base+".key"), key))
}

func (w *issuer) write(dir, base string, by pair, name string, groups []string, hosts ...string) error {
	p, err := w.issue(by, name, groups, hosts...)
	if err != nil {
		return err
	}
	return p.write(dir, base)
}

// kubeconfig writes a kubeconfig that contains the user's certificate and needs no other file.
func (w *issuer) kubeconfig(file, user string, groups ...string) error {
	p, err := w.issue(w.ca, user, groups)
	if err != nil {
		return err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(p.key)
	if err != nil {
		return err
	}
	name := w.s.Name
	return clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{name: {Server: w.s.APIURL(), CertificateAuthorityData: w.ca.pem()}},
		AuthInfos:      map[string]*api.AuthInfo{user: {ClientCertificateData: p.pem(), ClientKeyData: key}},
		Contexts:       map[string]*api.Context{name: {Cluster: name, AuthInfo: user}},
		CurrentContext: name,
	}, file)
}
