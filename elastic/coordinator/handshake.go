package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

const (
	// handshakesPerSecond and handshakesBurst limit all TLS handshakes: each takes some milliseconds of a processor.
	handshakesPerSecond, handshakesBurst = 500, 1000
	// SourcePerSecond and SourceBurst limit the connections of one source, and how many of its new tokens are reviewed: an agent needs one
	// of each, and all agents of a node, or of a cluster behind one gateway, may share an address.
	SourcePerSecond, SourceBurst = 10, 64
	// handshakeWait is how long a handshake waits for its turn: much less than an agent's timeout, or each turn would be spent on a caller
	// that has given up. handshakeTime is how long it and the first frames of HTTP/2 may then take.
	handshakeWait, handshakeTime = time.Second, 5 * time.Second
)

var errTooMany = errors.New("too many connections are being opened")

// handshakes are TLS credentials that limit handshakes, and the rate at which connections are read.
type handshakes struct {
	credentials.TransportCredentials
	inAll     *rate.Limiter
	perSource *PerSource
	intake    *intake
}

func limited(tls credentials.TransportCredentials, in *intake) *handshakes {
	return &handshakes{tls, rate.NewLimiter(handshakesPerSecond, handshakesBurst), NewPerSource(), in}
}

// ServerHandshake closes connections of a source that opens too many, before it does any work for them.
func (h *handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if source := Source(c.RemoteAddr()); !h.perSource.Take(source) {
		_ = c.Close()
		return nil, nil, fmt.Errorf("connection from %s: %w there", source, errTooMany)
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeWait)
	defer cancel()
	if err := h.inAll.Wait(ctx); err != nil {
		_ = c.Close()
		return nil, nil, fmt.Errorf("%w: %w", errTooMany, err)
	}
	// gRPC removes the deadline once the connection uses HTTP/2; without one a silent connection would stay for ever.
	if err := c.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok { // the kernel's buffer of an unread connection counts as this process's memory
		_ = tcp.SetReadBuffer(window)
	}
	secure, info, err := h.TransportCredentials.ServerHandshake(c)
	if err != nil {
		return nil, nil, err
	}
	in := h.intake.inlet(secure)
	return in, counted{info, in}, nil
}

// Clone implements credentials.TransportCredentials; the clone shares the limits.
func (h *handshakes) Clone() credentials.TransportCredentials {
	return &handshakes{h.TransportCredentials.Clone(), h.inAll, h.perSource, h.intake}
}
