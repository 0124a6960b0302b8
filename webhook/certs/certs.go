// Package certs keeps the certificates of Holdfast's servers in one Secret, signed by Holdfast's own certificate
// authority, and writes that authority into the webhook's configuration.
//
//   - A certificate is renewed 90 days before it ends. The servers use the new certificate without a restart.
//   - A new authority is published 30 days before it signs certificates, so that clients receive it in time. It signs earlier only if
//     the present authority is invalid or ends within a day.
//   - If several replicas renew at once, one write succeeds, and all replicas use its result.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// How long certificates last and how long ahead of their end they are renewed.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	serverLife    = 365 * 24 * time.Hour
	renewAhead    = 90 * 24 * time.Hour
	// announced is how long the next authority is announced before it signs. Agents receive it with each stream.
	announced = 30 * 24 * time.Hour
	backdate  = time.Hour
)

const authorityName = "holdfast-ca"

// Keys of the Secret. DataAuthority holds all trusted authorities: first the one that signs, whose key is in dataAuthorityKey, then
// the next one, which dataNext holds too, or the previous one.
const (
	dataAuthority    = "ca.crt"
	dataAuthorityKey = "ca.key"
	dataServer       = "tls.crt"
	dataServerKey    = "tls.key"
	dataNext         = "next.crt"
	dataNextKey      = "next.key"
)

// Renewal names which certificates must be issued again.
type Renewal int

const (
	// Keep: no certificate ends soon.
	Keep Renewal = iota
	// RenewServer: only the server's certificate.
	RenewServer
	// Announce: create the next authority, which does not sign yet.
	Announce
	// Promote: the next authority signs from now on, the server's certificate first.
	Promote
	// RenewAll: replace the authority at once. Clients that trust only the previous one fail, unless it is still valid.
	RenewAll
)

var serverAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

// Decide returns which certificates in the Secret's data must be issued again for servers with the DNS names.
func Decide(data map[string][]byte, names []string, now time.Time) Renewal {
	authority, key := data[dataAuthority], data[dataAuthorityKey]
	if ok, err := rotator.ValidCert(authority, authority, key, authorityName, nil, now); err != nil || !ok {
		return RenewAll
	}
	signing, ok := span(authority)
	if !ok {
		return RenewAll
	}
	if signing.until.Sub(now) < renewAhead {
		next, ok := span(data[dataNext])
		if good, err := rotator.ValidCert(
			data[dataNext],
			data[dataNext],
			data[dataNextKey],
			authorityName,
			nil,
			now.Add(renewAhead),
		); err != nil ||
			!good ||
			!ok {
			return Announce
		}
		if now.Sub(next.from) >= announced || signing.until.Sub(now) < lastDay {
			return Promote
		}
	}
	at := now.Add(renewAhead)
	if at.After(signing.until) {
		at = signing.until
	}
	for _, name := range names {
		ok, err := rotator.ValidCert(authority, data[dataServer], data[dataServerKey], name, &serverAuth, at)
		if err != nil || !ok {
			return RenewServer
		}
	}
	return Keep
}

// lastDay is when the next authority signs at the latest, whenever it was announced.
const lastDay = 24 * time.Hour

// lifetime is the time in which a certificate is valid.
type lifetime struct{ from, until time.Time }

// span is that of the first certificate of a PEM bundle.
func span(bundle []byte) (lifetime, bool) {
	block, _ := pem.Decode(bundle)
	if block == nil {
		return lifetime{}, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return lifetime{}, false
	}
	return lifetime{c.NotBefore, c.NotAfter}, true
}

// Renew returns the Secret's data after the renewal r. An authority that is still valid stays trusted, after its successor.
func Renew(data map[string][]byte, r Renewal, names []string, now time.Time) (map[string][]byte, error) {
	maker := &rotator.CertRotator{CAName: authorityName, CAOrganization: "holdfast.dev"}
	out := maps.Clone(data)
	if out == nil {
		out = map[string][]byte{}
	}
	signing := stillValid(data[dataAuthority], now)
	switch r {
	case Announce, RenewAll:
		made, err := maker.CreateCACert(now.Add(-backdate), now.Add(authorityLife))
		if err != nil {
			return nil, fmt.Errorf("making a certificate authority: %w", err)
		}
		if r == Announce {
			out[dataAuthority], out[dataNext], out[dataNextKey] = slices.Concat(signing, made.CertPEM), made.CertPEM, made.KeyPEM
			return out, nil
		}
		out[dataAuthority], out[dataAuthorityKey] = slices.Concat(made.CertPEM, signing), made.KeyPEM
	case Promote:
		out[dataAuthority], out[dataAuthorityKey] = slices.Concat(data[dataNext], signing), data[dataNextKey]
	case Keep, RenewServer:
	}
	if r != RenewServer {
		delete(out, dataNext)
		delete(out, dataNextKey)
	}
	authority, err := readAuthority(out)
	if err != nil {
		return nil, err
	}
	server, key, err := issue(authority, names, lifetime{now.Add(-backdate), now.Add(serverLife)})
	if err != nil {
		return nil, fmt.Errorf("making a server certificate: %w", err)
	}
	out[dataServer], out[dataServerKey] = server, key
	return out, nil
}

// issue returns a server certificate, signed by the authority, and its key, both as PEM. The key is one of ECDSA: a server signs in each
// handshake, and the API server connects again for most calls while a Job of thousands of pods starts. A signature by RSA takes 1 ms.
func issue(authority *rotator.KeyPairArtifacts, names []string, valid lifetime) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: names[0]},
		DNSNames:              names,
		NotBefore:             valid.from,
		NotAfter:              valid.until,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           serverAuth,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Cert, private.Public(), authority.Key)
	if err != nil {
		return nil, nil, err
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), key, nil
}

// readAuthority reads the authority that signs, and its key.
func readAuthority(data map[string][]byte) (*rotator.KeyPairArtifacts, error) {
	pair, err := tls.X509KeyPair(data[dataAuthority], data[dataAuthorityKey])
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	block, _ := pem.Decode(data[dataAuthorityKey])
	if block == nil {
		return nil, errors.New("reading the certificate authority: its key is not PEM")
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority's key: %w", err)
	}
	signer, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	return &rotator.KeyPairArtifacts{Cert: signer, Key: key, CertPEM: data[dataAuthority], KeyPEM: data[dataAuthorityKey]}, nil
}

// stillValid returns the first certificate of a PEM bundle if it has not ended.
func stillValid(of []byte, now time.Time) []byte {
	block, _ := pem.Decode(of)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || now.After(c.NotAfter) {
		return nil
	}
	return pem.EncodeToMemory(block)
}
