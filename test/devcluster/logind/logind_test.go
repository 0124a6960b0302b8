package logind

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// TestLogind makes the calls of a kubelet (1.37: pkg/kubelet/nodeshutdown/systemd).
func TestLogind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	l, err := Serve(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bus, err := dbus.Connect("unix:path=" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	login := bus.Object("org.freedesktop.login1", object)
	if delay, err := login.GetProperty(manager + ".InhibitDelayMaxUSec"); err != nil || delay.Value() != uint64(600_000_000) {
		t.Errorf("the longest delay is %v, %v", delay, err)
	}
	var lock uint32
	if err := login.Call(manager+".Inhibit", 0, "shutdown", "test", "to see", "delay").Store(&lock); err != nil {
		t.Fatal(err)
	}
	if n := l.Locks(); n != 1 {
		t.Errorf("%d locks are held", n)
	}
	if err := bus.AddMatchSignal(dbus.WithMatchInterface(manager), dbus.WithMatchMember("PrepareForShutdown"), dbus.WithMatchObjectPath(object)); err != nil {
		t.Fatal(err)
	}
	signals := make(chan *dbus.Signal, 1)
	bus.Signal(signals)
	for _, begins := range []bool{true, false} {
		if err := l.PrepareForShutdown(begins); err != nil {
			t.Fatal(err)
		}
		if s := <-signals; s.Name != manager+".PrepareForShutdown" || len(s.Body) != 1 || s.Body[0] != begins {
			t.Errorf("received %+v", s)
		}
	}
	if err := syscall.Close(int(lock)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); l.Locks() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d locks are held", l.Locks())
		}
	}
	if err := login.Call(manager+".PowerOff", 0, false).Err; err == nil {
		t.Error("an unknown call succeeded")
	}
}
