package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// mostBytes is what a registry may send about one image: tokens, index, manifest and configuration, some tens of KiB of a
// real one. Decoded, lists of empty objects take a hundred times as much memory, in as many readings as run at once.
const mostBytes = 256 << 10

// mostRequests are made for one image: ping, token, index, manifest and configuration, each tried twice and sent on
// a few times.
const mostRequests = 32

// userError is an error whose text is for people as it stands.
type userError string

func (e userError) Error() string { return string(e) }

// guard stands between one reading of an image and the network.
type guard struct {
	inner    http.RoundTripper
	registry name.Registry
	// insecure: the controller's flags name this registry, so that it may be on this machine and speak plain HTTP.
	insecure bool
	left     int64
	requests int64
}

// RoundTrip refuses plain HTTP and this machine to anything but a registry that the controller's flags name: whoever
// may create a Job chooses what is asked here, from inside the cluster.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	registry := g.registry.RegistryStr()
	home := req.URL.Host == registry
	switch {
	case atomic.AddInt64(&g.requests, 1) > mostRequests:
		return nil, userError(fmt.Sprintf("registry %s redirects too often", registry))
	case home && g.insecure:
	case home && ofThisMachine(req.URL.Hostname()):
		return nil, userError(fmt.Sprintf("registry %s is on the machine that asks: holdfast-controller asks it where --insecure-registries names it", registry))
	case home && req.URL.Scheme != "https":
		return nil, unreachable(registry)
	case req.URL.Scheme != "https":
		return nil, userError(fmt.Sprintf("registry %s redirects to plain HTTP, which is not followed", registry))
	case ofThisMachine(req.URL.Hostname()):
		return nil, userError(fmt.Sprintf("registry %s redirects to %s, which is not followed", registry, shorten(req.URL.Hostname(), 64)))
	}
	resp, err := g.inner.RoundTrip(req)
	if err == nil {
		resp.Body = &bounded{ReadCloser: resp.Body, left: &g.left}
	}
	return resp, err
}

// bounded is a body that ends with an error once all bodies together have given what they may.
type bounded struct {
	io.ReadCloser
	left *int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if atomic.AddInt64(b.left, -int64(n)) < 0 {
		return 0, userError("its registry sends more than 256Ki about it")
	}
	return n, err
}

// CheckRegistries says which of the names, if any, is no registry as image names have it.
func CheckRegistries(names []string) error {
	for _, registry := range names {
		if at, err := name.NewRegistry(registry, name.StrictValidation); err != nil || at.RegistryStr() != registry {
			return fmt.Errorf("%q is no registry: write HOST or HOST:PORT, as in an image's name", registry)
		}
	}
	return nil
}

// NewTransport reaches registries, each by the address that its name has in DNS, and those on this machine that are
// named as insecure. Besides the machine's own authorities those in the PEM file are trusted, where one is named.
func NewTransport(authorities string, insecure []string) (http.RoundTripper, error) {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer(insecure),
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    Timeout,
		ResponseHeaderTimeout:  Timeout,
		MaxResponseHeaderBytes: 256 << 10,
	}
	if authorities == "" {
		return t, nil
	}
	pem, err := os.ReadFile(authorities)
	if err != nil {
		return nil, fmt.Errorf("reading the registries' authorities: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", authorities)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}

// dialer refuses addresses that a name in public DNS has no business to lead to: the cloud's metadata service and
// this machine, but for a registry that is named as insecure. Private networks are where many registries are.
func dialer(insecure []string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, _ := net.SplitHostPort(address)
		asked := slices.Contains(insecure, address) || (port == "443" || port == "80") && slices.Contains(insecure, host)
		d := net.Dialer{Timeout: Timeout, Control: func(_, to string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(to)
			if err != nil {
				return err
			}
			ip := at.Addr().Unmap()
			if ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || ip.IsLoopback() && !asked {
				return fmt.Errorf("%s has address %s, which is not asked", shorten(host, 64), ip)
			}
			return nil
		}}
		return d.DialContext(ctx, network, address)
	}
}

// ofThisMachine says whether the host's very name means this machine.
func ofThisMachine(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.Unmap().IsLoopback()
}

// unreachable is the one answer for whatever keeps the controller from talking TLS with a registry, or the registry
// from answering in time. Different texts would tell whoever creates Jobs what the cluster's network holds.
func unreachable(registry string) error {
	return userError(fmt.Sprintf("registry %s did not answer over TLS, with a certificate that is trusted here, within %s: the log of holdfast-controller says why; plain HTTP is spoken to what --insecure-registries names", registry, Timeout))
}

// reason puts an error into words that hold nothing which a server has sent, and logs what they leave out.
func (r *Reader) reason(ctx context.Context, ref name.Reference, g *guard, pull credentials, err error) error {
	registry := ref.Context().RegistryStr()
	var own userError
	var answer *transport.Error
	var call *url.Error
	var wire net.Error
	r.o.Log.Info("an image could not be read", "image", shorten(ref.Name(), 300), "error", shorten(err.Error(), 1000))
	switch {
	case errors.As(err, &own):
		return own
	case atomic.LoadInt64(&g.left) < 0:
		return userError("its registry sends more than 256Ki about it")
	case errors.As(err, &answer):
		return refusedBy(registry, answer.StatusCode, pull)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.As(err, &call), errors.As(err, &wire):
		return unreachable(registry)
	}
	return fmt.Errorf("registry %s: %s", registry, shorten(err.Error(), 200))
}

// refusedBy says what a registry's status means.
func refusedBy(registry string, status int, pull credentials) error {
	switch status {
	case http.StatusNotFound:
		return fmt.Errorf("registry %s has no such image", registry)
	case http.StatusUnauthorized, http.StatusForbidden:
		switch {
		case pull.off:
			return fmt.Errorf("registry %s wants credentials, and holdfast-controller may not read pull secrets (--image-pull-secrets)", registry)
		case pull.missing != "":
			return fmt.Errorf("registry %s wants credentials, and not all could be read: %s", registry, pull.missing)
		}
		return fmt.Errorf("registry %s refuses the credentials of the pull secrets", registry)
	}
	return fmt.Errorf("registry %s answers %d", registry, status)
}

// shorten is as much of s as a message holds.
func shorten(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
