package local

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/elastic"
)

// TestOnlyTheRunsAgentIsServed calls as another process of the machine would, which may know address and certificate but not the token.
func TestOnlyTheRunsAgentIsServed(t *testing.T) {
	s, err := Serve(Gang{Pod: elastic.Pod{UID: "uid", Name: "here"}, Notice: func(elastic.Notice) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	if host, _, err := net.SplitHostPort(s.Address); err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("it serves at %s, which others can reach", s.Address)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(s.CA))
	conn, err := grpc.NewClient(s.Address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, token := range []string{"", "x", s.Token[1:], s.Token} {
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token))
		stream, err := v1.NewCoordinatorClient(conn).Attach(ctx)
		if err == nil {
			_ = stream.Send(&v1.Report{Protocol: 1, Incarnation: 1, Address: "127.0.0.1"}) // the answer says why
			_, err = stream.Recv()
		}
		if refused := status.Code(err) == codes.Unauthenticated; refused == (token == s.Token) {
			t.Errorf("token %q: %v", token, err)
		}
		cancel()
	}
}
