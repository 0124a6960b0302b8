package coordinator

import (
	"net"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// sourcesKept bounds the number of stored sources; the source that was not seen for longest is dropped and gets a new allowance.
const sourcesKept = 1 << 16

// PerSource limits the rate of events of each source, such as an address.
type PerSource struct {
	mu       sync.Mutex // held while a limiter is looked up and added
	limiters *lru.Cache
}

// NewPerSource allows each source SourcePerSecond, and SourceBurst at once.
func NewPerSource() *PerSource { return &PerSource{limiters: lru.New(sourcesKept)} }

// Take uses one event of the source's allowance; false: it is used up.
func (p *PerSource) Take(source string) bool {
	p.mu.Lock()
	l, ok := p.limiters.Get(source)
	if !ok {
		l = rate.NewLimiter(SourcePerSecond, SourceBurst)
		p.limiters.Add(source, l)
	}
	p.mu.Unlock()
	return l.(*rate.Limiter).Allow()
}

// Source returns the host of a connection's address, without the port.
func Source(a net.Addr) string {
	if a == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
