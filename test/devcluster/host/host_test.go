package host

import (
	"os"
	"os/exec"
	"reflect"
	"testing"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

func TestIdentity(t *testing.T) {
	for options, want := range map[string][]string{
		"rw,cpu,cpuacct":                           {"cpu", "cpuacct"},
		"rw,xattr,name=systemd":                    {"none", "name=systemd"},
		"rw,cpuset,clone_children":                 {"cpuset"},
		"rw,name=x,release_agent=/lib/agent":       {"none", "name=x"},
		"rw,memory,release_agent=/lib/systemd/a,b": {"memory", "b"},
	} {
		if got := identity(options); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", options, got, want)
		}
	}
}

// TestAlive: a process is identified by its number, start time and boot, and is not alive once it has ended.
func TestAlive(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !Alive(p) {
		t.Fatal("the running process counts as dead")
	}
	for name, other := range map[string]layout.Process{
		"none":            {},
		"another start":   {PID: p.PID, Start: p.Start + 1, Boot: p.Boot},
		"before a reboot": {PID: p.PID, Start: p.Start, Boot: "other"},
	} {
		if Alive(other) {
			t.Errorf("%s: identified as the running process", name)
		}
		if err := Kill(other); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !Alive(p) {
		t.Fatal("the process was killed by a wrong description")
	}
	kids, err := Descendants(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, k := range kids {
		found = found || (k.PID == p.PID && reflect.DeepEqual(k.Args, []string{"sleep", "100"}))
	}
	if !found {
		t.Errorf("the child is not among %v", kids)
	}
	if err := Kill(p); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if Alive(p) {
		t.Error("the dead process counts as alive")
	}
}

func TestRecordsOfNothing(t *testing.T) {
	recs, err := Records(t.TempDir())
	if err != nil || len(recs) != 0 {
		t.Fatalf("got %v, %v", recs, err)
	}
}

// TestRecordOfElsewhere: a copied record must not cause the removal of the original.
func TestRecordOfElsewhere(t *testing.T) {
	base := t.TempDir()
	rec := &layout.Record{Spec: layout.Spec{Name: "x", Dir: base + "/x", Nodes: 1}}
	if err := os.MkdirAll(base+"/copy", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(base+"/x", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := rec.Write(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(base+"/x/record.json", base+"/copy/record.json"); err != nil {
		t.Fatal(err)
	}
	if _, err := Records(base); err == nil {
		t.Fatal("a record of another directory was accepted")
	}
}

// TestRecordThatIsGone: two starts after a killed run both find its record; one removes the cluster while the other waits.
func TestRecordThatIsGone(t *testing.T) {
	base := t.TempDir()
	rec := &layout.Record{Spec: layout.Spec{Name: "x", Dir: base + "/x", Nodes: 1}}
	if now, err := current(rec); now != nil || err != nil {
		t.Errorf("got %v, %v", now, err)
	}
	if err := os.MkdirAll(base+"/x", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := rec.Write(); err != nil {
		t.Fatal(err)
	}
	if now, err := current(rec); err != nil || now == nil || now.Spec.Name != "x" {
		t.Errorf("got %v, %v", now, err)
	}
}
