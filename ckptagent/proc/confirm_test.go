//go:build linux

package proc

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGreetingsNameNobody: only the kernel identifies the user of a launcher. If it cannot, nothing is started: the connecting process may
// have ended, or may have executed another program, perhaps as another user.
func TestGreetingsNameNobody(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	served, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()

	said := Limits{Identity: Identity{UID: 4321, GID: 4321}, Resource: map[int][2]uint64{}}
	body, _ := json.Marshal(hello{ID: "x", Argv: []string{"torchrun", "--nproc-per-node=xpu", "t.py"}, Dir: dir, Env: []string{"HOLDFAST_PYTHON=/bin/false"}, Limits: said})
	l := &Launch{conn: served}
	go conn.Write(body)
	if err := l.read(uint32(len(body))); err != nil {
		t.Fatal(err)
	}
	if l.Limits.Identity.UID != uint32(os.Geteuid()) || l.Invalid != nil {
		t.Errorf("runs as %+v, %v", l.Limits.Identity, l.Invalid)
	}

	for name, pid := range map[string]int{"another user's": os.Getpid(), "ended": ended(t)} {
		l.Limits = said
		if l.Invalid = l.Limits.confirm(pid, unix.Ucred{Uid: 1234, Gid: 1234}); l.Invalid == nil || l.Limits.Identity.UID != 1234 ||
			l.Limits.Identity.GID != 1234 {
			t.Errorf("%s: runs as %+v, %v", name, l.Limits.Identity, l.Invalid)
		}
		l.CountDevices(Root(dir))
		if l.devices != (devices{}) {
			t.Errorf("%s: the interpreter was asked: %+v", name, l.devices)
		}
	}
}

func ended(t *testing.T) int {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}
