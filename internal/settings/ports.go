package settings

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports are the TCP ports from First to Last.
type Ports struct{ First, Last int }

// String returns the ports in the form in which agents get them.
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// Bounds of ports. Lower ports belong to the system, and a process without privileges cannot listen on them.
const minPort, maxPort = 1024, 65535

// parsePorts parses a port or a range of ports, and returns what is wrong with it.
func parsePorts(value string) (Ports, string) {
	first, last, ranged := strings.Cut(value, "-")
	if !ranged {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from < minPort || to < from {
		return Ports{}, fmt.Sprintf(`must be a port from %d to %d such as "29500", or a range such as "29500-29531", the lower port first; remove the key for any free port`, minPort, maxPort)
	}
	return Ports{First: int(from), Last: int(to)}, ""
}
