package layout

import (
	"errors"
	"net"
)

const (
	firstOctet = 64
	lastOctet  = 250
)

// FreeOctet returns an x so that 10.x.0.0/16 overlaps no range in taken. start spreads the choice, so that two machines on one network
// rarely agree.
func FreeOctet(taken []*net.IPNet, start int) (int, error) {
	n := lastOctet - firstOctet + 1
	for i := range n {
		x := firstOctet + (start+i)%n
		want := &net.IPNet{IP: net.IPv4(10, byte(x), 0, 0).To4(), Mask: net.CIDRMask(16, 32)}
		if !overlaps(taken, want) {
			return x, nil
		}
	}
	return 0, errors.New("every 10.x.0.0/16 from 10.64 to 10.250 is in use by a route or an address; free one of them")
}

func overlaps(taken []*net.IPNet, want *net.IPNet) bool {
	for _, t := range taken {
		if t.IP.To4() == nil {
			continue
		}
		if ones, _ := t.Mask.Size(); ones == 0 {
			continue // the default route
		}
		if t.Contains(want.IP) || want.Contains(t.IP) {
			return true
		}
	}
	return false
}
