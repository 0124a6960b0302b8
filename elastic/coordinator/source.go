package coordinator

import (
	"net"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// sourcesKept bounds the memory of sources; who was not seen for longest is forgotten, and begins anew.
const sourcesKept = 1 << 16

// PerSource limits how often something may happen for each source, such as an address.
type PerSource struct {
	mu       sync.Mutex // between looking a limiter up and adding it
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

// Source is where a connection comes from: the host without the port.
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
