//go:build linux

package watch

import (
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// mostSockets is of how many sockets of all ranks the bytes are read, and readFor how long a look waits for that.
	mostSockets = 4096
	readFor     = 200 * time.Millisecond
	// sizeofDiag is the size of inet_diag_msg, sizeofDiagRequest that of inet_diag_req_v2, diagInfo the attribute with tcp_info.
	sizeofDiag        = 72
	sizeofDiagRequest = 56
	diagInfo          = 2
	// flowing are the states of a connection that can receive or send.
	flowing = 1<<unix.BPF_TCP_ESTABLISHED | 1<<unix.BPF_TCP_FIN_WAIT1 | 1<<unix.BPF_TCP_FIN_WAIT2 | 1<<unix.BPF_TCP_CLOSE_WAIT |
		1<<unix.BPF_TCP_LAST_ACK | 1<<unix.BPF_TCP_CLOSING
)

// passed returns, for each family, the bytes that each of its TCP connections has received and sent, by cookie: recv and send are no I/O in
// /proc/PID/io. Connections to or from a port in quiet are left out. All are unknown if they cannot be read in time.
func (w *Watcher) passed(families [][]int, quiet []int, world int) []traffic {
	begun := time.Now()
	none, out := make([]traffic, len(families)), make([]traffic, len(families))
	select {
	case w.passing <- struct{}{}:
	default: // the previous one has not ended
		return none
	}
	done := make(chan []traffic, 1)
	go func() {
		defer func() { <-w.passing }()
		for i := range out {
			out[i] = traffic{bytes: map[uint64]uint64{}, at: begun, unit: unitOf(world)}
		}
		if err := connections(owners(families, begun.Add(readFor)), quiet, out); err != nil {
			out = none
		}
		done <- out
	}()
	select {
	case out := <-done:
		return out
	case <-time.After(readFor):
		return none
	}
}

// owners returns the index of the family that holds each socket, by the socket's inode.
func owners(families [][]int, end time.Time) map[uint32]int {
	out := map[uint32]int{}
	link := make([]byte, 32)
	for i, family := range families {
		for _, pid := range family {
			dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
			entries, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			for _, e := range entries {
				if len(out) == mostSockets || time.Now().After(end) {
					return out
				}
				n, err := unix.Readlink(dir+e.Name(), link)
				if err != nil {
					continue
				}
				number, ok := strings.CutPrefix(string(link[:n]), "socket:[")
				if inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32); ok && err == nil {
					out[uint32(inode)] = i
				}
			}
		}
	}
	return out
}

// diagRequest asks for the TCP connections of one family of addresses, with tcp_info.
type diagRequest byte

func (r diagRequest) Len() int { return sizeofDiagRequest }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, sizeofDiagRequest)
	b[0], b[1], b[2] = byte(r), unix.IPPROTO_TCP, 1<<(diagInfo-1)
	binary.NativeEndian.PutUint32(b[4:], flowing)
	return b
}

// connections adds the bytes of the connections that families own.
func connections(owners map[uint32]int, quiet []int, to []traffic) error {
	if len(owners) == 0 {
		return nil
	}
	for _, family := range []diagRequest{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(family)
		err := req.ExecuteIter(unix.NETLINK_SOCK_DIAG, unix.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
			if len(msg) < sizeofDiag {
				return true
			}
			i, ours := owners[binary.NativeEndian.Uint32(msg[68:])]
			local, remote := int(binary.BigEndian.Uint16(msg[4:])), int(binary.BigEndian.Uint16(msg[6:]))
			if ours && !slices.Contains(quiet, local) && !slices.Contains(quiet, remote) {
				to[i].bytes[binary.NativeEndian.Uint64(msg[44:])] = transferred(msg[sizeofDiag:])
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// transferred returns the bytes that a connection has received, and sent with an acknowledgement.
func transferred(attributes []byte) uint64 {
	const acked, received = unsafe.Offsetof(unix.TCPInfo{}.Bytes_acked), unsafe.Offsetof(unix.TCPInfo{}.Bytes_received)
	parsed, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return 0
	}
	for _, a := range parsed {
		if a.Attr.Type == diagInfo && uintptr(len(a.Value)) >= received+8 {
			return binary.NativeEndian.Uint64(a.Value[acked:]) + binary.NativeEndian.Uint64(a.Value[received:])
		}
	}
	return 0
}
