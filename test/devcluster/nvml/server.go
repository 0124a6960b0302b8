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

// Socket is the server's name next to the library, and in a node's control directory for whoever has GPUs fail.
const Socket = "gpus.sock"

// GPU is how one pretended device is.
type GPU struct {
	UUID, PCI                            string
	Lost, ResetRequired, Pending, Failed bool
	// Recovery is the driver's recovery action, -1 where it knows none.
	Recovery int
	ECC      uint64
	// Nameless: the driver gives no handle of it. LinksDown of its NVLinks are down, Lanes of its PCIe lanes are used, 0: all.
	Nameless         bool
	LinksDown, Lanes int
	// LinksUnread: the driver fails to say how its NVLinks are.
	LinksUnread bool
}

// Fault is what happens to one GPU, or to all by way of the driver. The zero value heals everything.
type Fault struct {
	GPU int `json:"gpu"`
	// Xid is told as an event and in the kernel log, with what follows from it.
	Xid int `json:"xid,omitempty"`
	// Lost: the device does not answer any more, and nothing else tells of it.
	Lost bool `json:"lost,omitempty"`
	// Hang: no call returns any more.
	Hang bool `json:"hang,omitempty"`
	// OldDriver: one that knows no recovery action.
	OldDriver bool `json:"oldDriver,omitempty"`
	// Nameless: the driver counts the device and gives no handle of it.
	Nameless bool `json:"nameless,omitempty"`
	// LinksDown of its NVLinks are down; Lanes of its PCIe lanes are used.
	LinksDown int `json:"linksDown,omitempty"`
	Lanes     int `json:"lanes,omitempty"`
	// LinksUnread: the driver fails to say how its NVLinks are.
	LinksUnread bool `json:"linksUnread,omitempty"`
	// Recovery is the driver's recovery action from now on, whatever the Xid would bring; nil: what follows.
	Recovery *int `json:"recovery,omitempty"`
}

// Server tells libraries how the GPUs of a node are.
type Server struct {
	// LogKernel writes a line to the node's kernel log, SetSick makes the device plugin say that these are unhealthy.
	LogKernel func(string) error
	SetSick   func(uuids []string) error

	mu sync.Mutex
	// guarded by mu
	gpus    []GPU
	hang    bool
	clients map[net.Conn]bool
}

// NewServer has healthy GPUs of these ids.
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
	if err := os.Chmod(path, 0o666); err != nil { // as NVIDIA's devices are
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

// serve reads one line: a library says that it watches, anybody else has something fail.
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

// part waits until a library has closed the driver, as a process that ends does.
func (s *Server) part(c net.Conn) {
	_, _ = io.Copy(io.Discard, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Close()
	delete(s.clients, c)
}

// Users is how many libraries have the driver open.
func (s *Server) Users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// tell writes to one library; one that does not read is gone. mu is held.
func (s *Server) tell(c net.Conn, text string) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		c.Close()
		delete(s.clients, c)
	}
}

// text is the whole state as the library reads it. mu is held.
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

// Happen makes the fault true for everybody who asks.
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

// fail changes what NVML says, as it follows from the fault.
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

// others are the kernel log and the device plugin, which sees the same. mu is held.
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

// Tell has a fault happen at the server that listens at path.
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
