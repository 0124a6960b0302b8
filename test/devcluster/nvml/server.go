package nvml

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// Socket is the name of the server's socket, next to the library and in a node's control directory, where callers cause faults.
const Socket = "gpus.sock"

// GPU is the state of one simulated device.
type GPU struct {
	UUID, PCI                            string
	Lost, ResetRequired, Pending, Failed bool
	// Recovery is the driver's recovery action, -1 if the driver has none.
	Recovery int
	ECC      uint64
	// Nameless: the driver gives no handle of it. LinksDown is the number of NVLinks that are down, Lanes of PCIe lanes in use, 0: all.
	Nameless         bool
	LinksDown, Lanes int
	// LinksUnread: the driver fails to return the state of its NVLinks.
	LinksUnread bool
}

// Fault is a fault of one GPU, or of all through the driver. The zero value heals everything.
type Fault struct {
	GPU int `json:"gpu"`
	// Xid is reported as an event and in the kernel log, with its consequences.
	Xid int `json:"xid,omitempty"`
	// Lost: the device no longer responds, without a line in the kernel log.
	Lost bool `json:"lost,omitempty"`
	// Hang: calls no longer return.
	Hang bool `json:"hang,omitempty"`
	// OldDriver: the driver has no recovery actions.
	OldDriver bool `json:"oldDriver,omitempty"`
	// Nameless: the driver counts the device and gives no handle of it.
	Nameless bool `json:"nameless,omitempty"`
	// LinksDown is the number of NVLinks that are down; Lanes the number of PCIe lanes in use.
	LinksDown int `json:"linksDown,omitempty"`
	Lanes     int `json:"lanes,omitempty"`
	// LinksUnread: the driver fails to return the state of its NVLinks.
	LinksUnread bool `json:"linksUnread,omitempty"`
	// Recovery is the driver's recovery action from now on, instead of the Xid's; nil: the Xid's.
	Recovery *int `json:"recovery,omitempty"`
}

// Server sends libraries the state of a node's GPUs.
type Server struct {
	// LogKernel writes a line to the node's kernel log; SetSick makes the device plugin report these GPUs as unhealthy.
	LogKernel func(string) error
	SetSick   func(uuids []string) error

	mu sync.Mutex
	// guarded by mu
	gpus    []GPU
	hang    bool
	clients map[net.Conn]bool
}

// NewServer returns a server with healthy GPUs of these ids.
func NewServer(ids []string) *Server {
	s := &Server{clients: map[net.Conn]bool{}}
	for i, id := range ids {
		s.gpus = append(s.gpus, GPU{UUID: id, PCI: fmt.Sprintf("0000:%02x:00", 16+i)})
	}
	return s
}

// Listen serves on a socket at path, for as long as the process lives.
func (s *Server) Listen(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o666); err != nil { // with the mode of NVIDIA's devices
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return nil
}

// serve reads one line: a library registers as a watcher, any other client causes a fault.
func (s *Server) serve(c net.Conn) {
	first, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		c.Close()
		return
	}
	if first == "watch\n" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clients[c] = true
		s.tell(c, s.text())
		go s.part(c)
		return
	}
	defer c.Close()
	var f Fault
	answer := "ok"
	if err := json.Unmarshal([]byte(first), &f); err != nil {
		answer = err.Error()
	} else if err := s.Happen(f); err != nil {
		answer = err.Error()
	}
	fmt.Fprintln(c, answer)
}

// part waits until a library has closed the driver, also by the end of its process.
func (s *Server) part(c net.Conn) {
	_, _ = io.Copy(io.Discard, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Close()
	delete(s.clients, c)
}

// Users is the number of libraries that have the driver open.
func (s *Server) Users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// tell writes to one library; one that does not read is dropped. mu is held.
func (s *Server) tell(c net.Conn, text string) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		c.Close()
		delete(s.clients, c)
	}
}

// text is the whole state in the library's format. mu is held.
func (s *Server) text() string {
	var b strings.Builder
	flag := map[bool]int{true: 1}
	fmt.Fprintf(&b, "hang %d\n", flag[s.hang])
	for i, g := range s.gpus {
		fmt.Fprintf(&b, "gpu %d %s %s %d %d %d %d %d %d %d %d %d %d\n", i, g.UUID, g.PCI, flag[g.Lost], flag[g.ResetRequired], g.Recovery, flag[g.Pending], flag[g.Failed], g.ECC,
			flag[g.Nameless], g.LinksDown, g.Lanes, flag[g.LinksUnread])
	}
	return b.String()
}

// Happen applies a fault for all clients.
func (s *Server) Happen(f Fault) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.GPU < 0 || f.GPU >= len(s.gpus) {
		return fmt.Errorf("no GPU %d: the node has %d, counted from 0", f.GPU, len(s.gpus))
	}
	if f == (Fault{GPU: f.GPU}) {
		s.heal()
	} else {
		s.fail(f)
	}
	text := s.text()
	if f.Xid != 0 {
		text += fmt.Sprintf("xid %d %d\n", f.GPU, f.Xid)
	}
	for c := range s.clients {
		s.tell(c, text)
	}
	return s.others(f)
}

func (s *Server) heal() {
	s.hang = false
	for i, g := range s.gpus {
		s.gpus[i] = GPU{UUID: g.UUID, PCI: g.PCI}
	}
}

// fail changes NVML's data as the fault requires.
func (s *Server) fail(f Fault) {
	g := &s.gpus[f.GPU]
	s.hang = s.hang || f.Hang
	g.Lost = g.Lost || f.Lost || f.Xid == 79
	g.Nameless = g.Nameless || f.Nameless
	g.LinksUnread = g.LinksUnread || f.LinksUnread
	g.LinksDown, g.Lanes = max(g.LinksDown, f.LinksDown), max(g.Lanes, f.Lanes)
	switch f.Xid {
	case 79:
		g.Recovery = 2
	case 46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158:
		g.Recovery = 1
	}
	g.Failed = g.Failed || f.Xid == 64
	g.Pending = g.Pending || f.Xid == 63
	if f.Xid == 48 || f.Xid == 95 {
		g.ECC++
	}
	if f.Recovery != nil {
		g.Recovery = *f.Recovery
	}
	if f.OldDriver {
		g.Recovery = -1
	}
}

// others passes the fault to kernel log and device plugin. mu is held.
func (s *Server) others(f Fault) error {
	var sick []string
	for _, g := range s.gpus {
		if g.Lost || g.Nameless || g.ResetRequired || g.Recovery > 0 || g.Failed {
			sick = append(sick, g.UUID)
		}
	}
	if f.Xid != 0 && s.LogKernel != nil {
		text := "holdfast-dev had it fail"
		if f.Xid == 79 {
			text = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
		}
		if err := s.LogKernel(fmt.Sprintf("<3>NVRM: Xid (PCI:%s): %d, %s", s.gpus[f.GPU].PCI, f.Xid, text)); err != nil {
			return err
		}
	}
	if s.SetSick == nil {
		return nil
	}
	return s.SetSick(sick)
}

// Tell sends a fault to the server that listens at path.
func Tell(path string, f Fault) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return fmt.Errorf("the node is off or has no pretended driver: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err := json.NewEncoder(c).Encode(f); err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return fmt.Errorf("%s", answer)
	}
	return nil
}
