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
	"sync/atomic"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// mostBytes limits what a registry may send for one image: tokens, index, manifest and configuration. A real one sends tens of KiB.
// Decoded lists of empty objects take a hundred times as much memory, in each concurrent read.
const mostBytes = 256 << 10

// mostRequests limits the requests for one image, redirects included; a real read needs about ten.
const mostRequests = 64

// userError is an error whose text is shown to users unchanged.
type userError string

func (e userError) Error() string { return string(e) }

// errTooMuch ends a response that exceeds mostBytes.
const errTooMuch = userError("its registry sends more than 256Ki for it")

// errTooMany refuses a request beyond mostRequests.
var errTooMany = userError(fmt.Sprintf("its registry needs more than %d requests for it: it may redirect in a loop", mostRequests))

// guard limits what one read of an image can send and receive.
type guard struct {
	inner    http.RoundTripper
	registry string
	// insecure: the controller's flags name this registry, so that it may speak plain HTTP.
	insecure bool
	// read counts the bytes of all responses, requests the requests.
	read, requests atomic.Int64
}

// RoundTrip uses plain HTTP only for registries that the controller's flags name: a user who may create a Job chooses the host that
// is queried from inside the cluster.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !(g.insecure && req.URL.Host == g.registry) {
		return nil, unreachable(g.registry)
	}
	if g.requests.Add(1) > mostRequests {
		return nil, errTooMany
	}
	resp, err := g.inner.RoundTrip(req)
	if err == nil {
		resp.Body = &bounded{resp.Body, &g.read}
	}
	return resp, err
}

// bounded is a body that ends with an error once all bodies together have given what they may.
type bounded struct {
	io.ReadCloser
	read *atomic.Int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.read.Add(int64(n)) > mostBytes {
		return 0, errTooMuch
	}
	return n, err
}

// CheckRegistries returns an error for the first name that is not a registry in the form that image names use.
func CheckRegistries(names []string) error {
	for _, registry := range names {
		if at, err := name.NewRegistry(registry, name.StrictValidation); err != nil || at.RegistryStr() != registry {
			return fmt.Errorf("%q is no registry: write HOST or HOST:PORT, as in an image's name", registry)
		}
	}
	return nil
}

// NewTransport connects to registries, each at the address that its name has in DNS, and to those on this machine only if they are
// named as insecure. It trusts the machine's authorities and those in the PEM file, if one is named.
func NewTransport(authorities string, insecure []string) (http.RoundTripper, error) {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.DialContext, t.TLSHandshakeTimeout, t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = dialer(insecure), Timeout, Timeout, mostBytes
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

// dialer refuses addresses that a public DNS name must not resolve to: the cloud's metadata service and this machine, unless the
// registry is named as insecure. Private networks are allowed, because many registries are there.
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
				return fmt.Errorf("%s has address %s, which images are not read from", shorten(host, 64), ip)
			}
			return nil
		}}
		return d.DialContext(ctx, network, address)
	}
}

// unreachable is the one message for every failure to reach a registry over TLS in time. Different texts would reveal the cluster's
// network to users who create Jobs.
func unreachable(registry string) error {
	return userError(fmt.Sprintf("registry %s did not answer over TLS, with a trusted certificate, within %s: holdfast-controller logs the cause; plain HTTP is used only for registries in --insecure-registries", registry, Timeout))
}

// reason turns an error into text that holds nothing a server has sent. missing is why credentials may be missing, "": none is.
func reason(ctx context.Context, g *guard, missing string, err error) error {
	var own userError
	var answer *transport.Error
	var call *url.Error
	var wire net.Error
	switch {
	case errors.As(err, &own):
		return own
	case g.read.Load() > mostBytes:
		return errTooMuch
	case errors.As(err, &answer):
		return refusedBy(g.registry, answer.StatusCode, missing)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.As(err, &call), errors.As(err, &wire):
		return unreachable(g.registry)
	}
	return fmt.Errorf("registry %s: %s", g.registry, shorten(err.Error(), 200))
}

// refusedBy describes a registry's status code.
func refusedBy(registry string, status int, missing string) error {
	unauthorized := status == http.StatusUnauthorized || status == http.StatusForbidden
	switch {
	case status == http.StatusNotFound:
		return fmt.Errorf("registry %s has no such image", registry)
	case unauthorized && missing != "":
		return fmt.Errorf("registry %s requires credentials, and %s", registry, missing)
	case unauthorized:
		return fmt.Errorf("registry %s rejects the credentials of the pull secrets", registry)
	}
	return fmt.Errorf("registry %s returns status %d", registry, status)
}

// shorten is as much of s as a message holds.
func shorten(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
