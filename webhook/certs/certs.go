// Package certs keeps the certificates of Holdfast's own servers in one Secret, signed by an authority of
// its own, and tells the API server which authority to trust. It promises that a certificate is renewed
// long before it ends and served without a restart, that replicas that start together agree on one
// authority, and that it reads no Secret but the named one.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
)

// How long certificates last and how long ahead of their end they are renewed.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	serverLife    = 365 * 24 * time.Hour
	renewAhead    = 90 * 24 * time.Hour
	backdate      = time.Hour
)

const authorityName = "holdfast-ca"

// Keys of the Secret. DataAuthority may hold several authorities, the newest first.
const (
	dataAuthority    = "ca.crt"
	dataAuthorityKey = "ca.key"
	dataServer       = "tls.crt"
	dataServerKey    = "tls.key"
)

// Renewal is what must be made anew.
type Renewal int

const (
	// Keep: all is good for long enough.
	Keep Renewal = iota
	// RenewServer: the server's certificate alone.
	RenewServer
	// RenewAll: the authority as well.
	RenewAll
)

var serverAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

// Decide says what of the Secret's data must be made anew for servers with the DNS names.
func Decide(data map[string][]byte, names []string, now time.Time) Renewal {
	at := now.Add(renewAhead)
	authority, key := data[dataAuthority], data[dataAuthorityKey]
	if ok, err := rotator.ValidCert(authority, authority, key, authorityName, nil, at); err != nil || !ok {
		return RenewAll
	}
	for _, name := range names {
		ok, err := rotator.ValidCert(authority, data[dataServer], data[dataServerKey], name, &serverAuth, at)
		if err != nil || !ok {
			return RenewServer
		}
	}
	return Keep
}

// Renew returns the Secret's data with what r names made anew. An authority that still holds stays in
// the bundle behind its successor.
func Renew(data map[string][]byte, r Renewal, names []string, now time.Time) (map[string][]byte, error) {
	maker := &rotator.CertRotator{CAName: authorityName, CAOrganization: "holdfast.dev", DNSName: names[0], ExtraDNSNames: names[1:], ExtKeyUsages: &serverAuth}
	out := map[string][]byte{dataAuthority: data[dataAuthority], dataAuthorityKey: data[dataAuthorityKey]}
	var authority *rotator.KeyPairArtifacts
	var err error
	if r == RenewAll {
		if authority, err = maker.CreateCACert(now.Add(-backdate), now.Add(authorityLife)); err != nil {
			return nil, fmt.Errorf("making a certificate authority: %w", err)
		}
		out[dataAuthority] = append(append([]byte{}, authority.CertPEM...), stillValid(data[dataAuthority], now)...)
		out[dataAuthorityKey] = authority.KeyPEM
	} else if authority, err = readAuthority(data); err != nil {
		return nil, err
	}
	server, key, err := maker.CreateCertPEM(authority, now.Add(-backdate), now.Add(serverLife))
	if err != nil {
		return nil, fmt.Errorf("making a server certificate: %w", err)
	}
	out[dataServer], out[dataServerKey] = server, key
	return out, nil
}

// readAuthority reads the newest authority and its key.
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
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	return &rotator.KeyPairArtifacts{Cert: cert, Key: key, CertPEM: data[dataAuthority], KeyPEM: data[dataAuthorityKey]}, nil
}

// stillValid returns the newest certificate of a PEM bundle if it has not ended.
func stillValid(bundle []byte, now time.Time) []byte {
	block, _ := pem.Decode(bundle)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || now.After(cert.NotAfter) {
		return nil
	}
	return pem.EncodeToMemory(block)
}
