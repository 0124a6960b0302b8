// Package logind simulates systemd's logind on a D-Bus of its own, as far as a kubelet uses it: an announced shutdown
// waits for processes that hold an inhibitor lock. One socket serves both the bus and logind, so that no D-Bus daemon
// is needed.
package logind

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	object  = dbus.ObjectPath("/org/freedesktop/login1")
	manager = "org.freedesktop.login1.Manager"
	// longest is how long a lock may delay a shutdown: longer than any test's kubelet needs, as a kubelet would otherwise try to raise it.
	longest = 10 * time.Minute
)

// Logind serves until it is closed.
type Logind struct {
	listener *net.UnixListener

	mu    sync.Mutex
	peers map[*peer]bool
	// locks is the number of locks that are held.
	locks int
}

// Serve listens at a path.
func Serve(path string) (*Logind, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l := &Logind{listener: listener, peers: map[*peer]bool{}}
	go func() {
		for {
			c, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			go l.serve(&peer{conn: c, in: bufio.NewReader(c)})
		}
	}()
	return l, nil
}

// Close ends all connections.
func (l *Logind) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{l.listener.Close()}
	for p := range l.peers {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}

// Locks is the number of locks held against a shutdown.
func (l *Logind) Locks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks
}

// PrepareForShutdown announces that the machine shuts down, or that the shutdown was cancelled.
func (l *Logind) PrepareForShutdown(begins bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.peers) == 0 {
		return errors.New("nobody listens")
	}
	var errs []error
	for p := range l.peers {
		errs = append(errs, p.send(&dbus.Message{Type: dbus.TypeSignal, Body: []any{begins}, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath: dbus.MakeVariant(object), dbus.FieldInterface: dbus.MakeVariant(manager), dbus.FieldMember: dbus.MakeVariant("PrepareForShutdown"),
			dbus.FieldSender: dbus.MakeVariant(":1.1"), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(begins)),
		}}, nil))
	}
	return errors.Join(errs...)
}

func (l *Logind) serve(p *peer) {
	defer p.conn.Close()
	if p.greet() != nil {
		return
	}
	l.mu.Lock()
	l.peers[p] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.peers, p)
		l.mu.Unlock()
	}()
	for {
		call, err := dbus.DecodeMessage(p.in)
		if err != nil || l.answer(p, call) != nil {
			return
		}
	}
}

// answer handles a call. Unknown calls are refused, as a bus does.
func (l *Logind) answer(p *peer, call *dbus.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()), dbus.FieldSender: dbus.MakeVariant(":1.1"),
	}}
	var lock *os.File
	switch member, _ := call.Headers[dbus.FieldMember].Value().(string); member {
	case "Hello":
		reply.Body = []any{":1.2"}
	case "AddMatch", "RemoveMatch":
	case "Get": // of InhibitDelayMaxUSec
		reply.Body = []any{dbus.MakeVariant(uint64(longest.Microseconds()))}
	case "Inhibit":
		held, given, err := os.Pipe()
		if err != nil {
			return err
		}
		defer given.Close() // the other end of the pipe closes only when the sent copy is closed, too
		lock = given
		reply.Body = []any{dbus.UnixFD(given.Fd())}
		l.locks++
		go l.await(held)
	default:
		text := fmt.Sprintf("%s is not served here", member)
		reply.Type, reply.Body = dbus.TypeError, []any{text}
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.freedesktop.DBus.Error.UnknownMethod")
	}
	if len(reply.Body) > 0 {
		reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply.Body...))
	}
	return p.send(reply, lock)
}

// await waits until a lock is released.
func (l *Logind) await(held *os.File) {
	_, _ = held.Read(make([]byte, 1)) // nothing is ever written: the read ends when all copies are closed
	held.Close()
	l.mu.Lock()
	l.locks--
	l.mu.Unlock()
}

// peer is one connection.
type peer struct {
	conn   *net.UnixConn
	in     *bufio.Reader
	serial uint32
}

// greet accepts any client, up to where messages begin.
func (p *peer) greet() error {
	if _, err := p.in.ReadByte(); err != nil {
		return err
	}
	for {
		line, err := p.in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := "ERROR"
		switch word, how, _ := strings.Cut(strings.TrimSpace(line), " "); {
		case word == "AUTH" && strings.HasPrefix(how, "EXTERNAL"):
			answer = "OK 00112233445566778899aabbccddeeff"
		case word == "AUTH":
			answer = "REJECTED EXTERNAL"
		case word == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case word == "BEGIN":
			return nil
		}
		if _, err := fmt.Fprintf(p.conn, "%s\r\n", answer); err != nil {
			return err
		}
	}
}

// send writes a message, with a file if there is one. The caller holds the lock of Logind.
func (p *peer) send(m *dbus.Message, file *os.File) error {
	var rights []byte
	if file != nil {
		m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(1))
		rights = unix.UnixRights(int(file.Fd()))
	}
	var out bytes.Buffer
	if _, err := m.EncodeToWithFDs(&out, binary.LittleEndian); err != nil {
		return err
	}
	p.serial++
	binary.LittleEndian.PutUint32(out.Bytes()[8:], p.serial) // the library does not export a message's serial number
	_, _, err := p.conn.WriteMsgUnix(out.Bytes(), rights, nil)
	return err
}
