//go:build linux

package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Port is a free TCP port that is kept from being handed out to anybody who does not ask for it by number.
//
// It is a socket that is bound and does not listen. Linux lets another socket with SO_REUSEADDR, such as
// the store's, bind and listen on the same port, while ports chosen by the kernel pass it by.
type Port struct {
	Number int
	fd     int
}

// OfferPort finds a free port and keeps it.
func OfferPort() (Port, error) {
	fd, sa, err := portSocket(0)
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

// Close lets the port go.
func (p Port) Close() {
	if p.Number != 0 {
		unix.Close(p.fd)
	}
}

// CheckPort says whether a store could listen on the port now; the error is nil if so.
func CheckPort(number int) error {
	fd, sa, err := portSocket(number)
	if err != nil {
		return nil // the store may know a way
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
