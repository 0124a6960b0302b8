//go:build linux

package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Port is a reserved free TCP port: the kernel does not choose it for other sockets.
//
// It is a socket that is bound and does not listen. Linux lets another socket with SO_REUSEADDR, such as the store's, bind and listen on
// the same port, while the kernel skips it when it chooses a port. If agents share a network and a port range, an abstract socket name,
// which belongs to that network, gives each port to one agent.
type Port struct {
	Number  int
	fd      int
	claimed int // 0: none, the kernel chose the port
}

// Ports is a range of ports that may be offered; the zero value: any.
type Ports struct{ First, Last int }

// ParsePorts parses what settings.Ports formats.
func ParsePorts(text string) (p Ports, err error) {
	if _, err = fmt.Sscanf(text, "%d-%d", &p.First, &p.Last); err != nil {
		return Ports{}, fmt.Errorf("reading %s=%q: %w", EnvMasterPort, text, err)
	}
	return p, nil
}

func (p Ports) String() string {
	if p.First == p.Last {
		return fmt.Sprintf("port %d", p.First)
	}
	return fmt.Sprintf("ports %d to %d", p.First, p.Last)
}

// OfferPort reserves a free port: in a range, the first free one after last.
func OfferPort(allowed Ports, last int) (Port, error) {
	if allowed == (Ports{}) {
		return bindPort(0)
	}
	why, n := error(nil), allowed.Last-allowed.First+1
	from := 0
	if last >= allowed.First {
		from = last + 1 - allowed.First
	}
	for i := range n {
		number := allowed.First + (from+i)%n
		p, err := claimPort(number)
		if err == nil {
			return p, nil
		}
		why = err
	}
	return Port{}, fmt.Errorf("%s of holdfast.dev/master-port: no port is free: %w", allowed, why)
}

// claimPort reserves the port with a number.
func claimPort(number int) (Port, error) {
	claimed, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Port{}, fmt.Errorf("opening a socket: %w", err)
	}
	err = unix.Bind(claimed, &unix.SockaddrUnix{Name: fmt.Sprintf("@holdfast.dev/master-port/%d", number)})
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("the agent of another pod in this network namespace holds port %d", number)
	}
	if err == nil {
		err = CheckPort(number)
	}
	var p Port
	if err == nil {
		p, err = bindPort(number)
	}
	if err != nil {
		unix.Close(claimed)
		return Port{}, err
	}
	p.claimed = claimed
	return p, nil
}

func bindPort(number int) (Port, error) {
	fd, sa, err := portSocket(number)
	if err != nil {
		return Port{}, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		unix.Close(fd)
		return Port{}, fmt.Errorf("binding to a free port: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return Port{}, fmt.Errorf("reading the port that was bound: %w", err)
	}
	p := Port{fd: fd}
	switch a := name.(type) {
	case *unix.SockaddrInet6:
		p.Number = a.Port
	case *unix.SockaddrInet4:
		p.Number = a.Port
	}
	return p, nil
}

// Close releases the port.
func (p Port) Close() {
	if p.Number != 0 {
		unix.Close(p.fd)
	}
	if p.claimed != 0 {
		unix.Close(p.claimed)
	}
}

// CheckPort returns nil if a store could listen on the port now, else the error.
func CheckPort(number int) error {
	fd, sa, err := portSocket(number)
	if err != nil {
		return nil // cannot be checked; the store may succeed
	}
	defer unix.Close(fd)
	err = unix.Bind(fd, sa)
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("the store of rank 0 cannot listen on port %d: %w", number, os.NewSyscallError("listen", err))
	}
	return nil
}

func portSocket(port int) (int, unix.Sockaddr, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: port}
	if err != nil {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		sa = &unix.SockaddrInet4{Port: port}
	} else {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err != nil {
		return -1, nil, fmt.Errorf("opening a socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("letting the store share the port: %w", err)
	}
	return fd, sa, nil
}
