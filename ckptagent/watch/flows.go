//go:build linux

package watch

import "time"

const (
	// flowUnit is how many bytes have to pass one socket within flowWindow, or between two looks, to count: keep-alive messages are fewer.
	flowUnit   = 64 << 10
	flowWindow = 15 * time.Second
	// flowRank is the same for each rank of the gang, if that is more: an answer of NCCL's RAS passes the sockets of its processes at each
	// look, some 100 bytes for each rank and communicator.
	flowRank = 2 << 10
)

// traffic is what has passed the sockets of one rank.
type traffic struct {
	bytes map[uint64]uint64 // by the socket's cookie; nil: unknown
	at    time.Time
	unit  uint64 // fewer bytes do not count
}

// unitOf returns the unit for a gang of that many ranks.
func unitOf(world int) uint64 { return uint64(max(flowUnit, world*flowRank)) }

// mark is how many bytes had passed a socket at some time.
type mark struct {
	bytes uint64
	at    time.Time
}

// flows counts what passes the sockets of one rank.
type flows struct {
	marks map[uint64]mark // by the socket's cookie; nil: they were never read
	bytes uint64          // that count; they only rise
}

// add takes what has passed until now.
func (f *flows) add(t traffic) {
	if t.bytes == nil {
		return
	}
	marks := make(map[uint64]mark, len(t.bytes))
	for cookie, bytes := range t.bytes {
		m, known := f.marks[cookie]
		switch passed := bytes - min(bytes, m.bytes); {
		case f.marks == nil: // at the first look
			m = mark{bytes, t.at}
		case passed >= t.unit:
			f.bytes += passed
			m = mark{bytes, t.at}
		case !known:
			m = mark{0, t.at}
		case t.at.Sub(m.at) >= flowWindow:
			m = mark{bytes, t.at}
		}
		marks[cookie] = m
	}
	f.marks = marks
}
