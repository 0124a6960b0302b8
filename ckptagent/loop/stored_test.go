//go:build linux

package loop_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

// record names the version whose agent leaves what it stores in testdata/stored, once: nothing writes it anew.
var record = flag.String("record", "", "keep what today's agent stores as that of this version")

// stored is what an agent of some version left when its container was killed.
type stored struct {
	// Generation and Incarnation are the agent's, Sealed is the newest step in memory, Durable the newest in storage.
	Generation, Incarnation, Sealed, Durable uint64
}

// uploader saves steps that say which they are; as a rank that restores it says what it finds.
const uploader = `
import os, time, holdfast
state = bytearray(256)
ck = holdfast.attach()
ck.track(state={"s": state})
start = ck.restore()
assert int.from_bytes(state[:8], "little") == start, (start, bytes(state[:8]))
os.write(1, b"start %d\n" % start)
for step in range(start + 1, 10**9):
    state[:8] = step.to_bytes(8, "little")
    ck.save(step)
    time.sleep(0.02)
`

// keeping is a pod that keeps its state in memory and in storage.
func keeping(t *testing.T, c *coordtest.Coordinator) *proctest.Container {
	p := newPod(t, c, "a")
	p.Env["HOLDFAST_STATE_BYTES"], p.Env["HOLDFAST_RANKS"] = "4096", "1"
	p.Env["HOLDFAST_STORAGE"], p.Env["HOLDFAST_GANG"], p.Env["HOLDFAST_JOB_UID"] = filepath.Join(p.Dir, "claim"), "llama", "uid"
	if err := os.Mkdir(p.Env["HOLDFAST_STORAGE"], 0o755); err != nil {
		t.Fatal(err)
	}
	p.File("train.py", uploader)
	return p
}

// places are what outlives a container, by its name in testdata.
func places(p *proctest.Container) map[string]string {
	return map[string]string{"run/agent.json": filepath.Join(p.Root, "run", "agent.json"), "memory/rank-0.arena": filepath.Join(p.Root, "memory", "rank-0.arena"), "claim": filepath.Join(p.Dir, "claim")}
}

// copyAll copies a file, or a folder with all that is in it.
func copyAll(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		at := filepath.Join(to, rel)
		raw, err := os.ReadFile(path)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(at), 0o755)
		}
		if err == nil {
			err = os.WriteFile(at, raw, 0o644)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRecordWhatIsStored writes the testdata of a version.
func TestRecordWhatIsStored(t *testing.T) {
	if *record == "" {
		return
	}
	needPython(t)
	c := coordtest.Start(t)
	p := keeping(t, c)
	g := c.LeadAndStore("a")
	p.Start("torchrun", "train.py")
	eventually.Holds(t, "steps in storage", func() (bool, any) {
		step, n := g.Durable()
		return n > 1, step
	})
	p.Kill()
	last := c.Report("a")
	s := stored{Generation: uint64(last.Generation), Incarnation: last.Incarnation, Sealed: newest(last)}
	s.Durable, _ = g.Durable()
	dir := filepath.Join("testdata", "stored", *record)
	for name, at := range places(p) {
		copyAll(t, at, filepath.Join(dir, name))
	}
	raw, err := json.MarshalIndent(s, "", "\t")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "stored.json"), append(raw, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStored: what agents of earlier versions left in a pod and in storage is what today's goes on from.
func TestStored(t *testing.T) {
	needPython(t)
	files, _ := filepath.Glob("testdata/stored/*/stored.json")
	if len(files) == 0 {
		t.Fatal("nothing of any version is kept")
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		var s stored
		if err == nil {
			err = json.Unmarshal(raw, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		version := filepath.Base(filepath.Dir(file))
		t.Run(version+" in the pod", func(t *testing.T) { goOnInPod(t, filepath.Dir(file), s) })
		t.Run(version+" in storage", func(t *testing.T) { goOnFromStorage(t, filepath.Dir(file), s) })
	}
}

// goOnInPod: the container is started again, with what memory holds.
func goOnInPod(t *testing.T, dir string, s stored) {
	c := coordtest.Start(t)
	p := keeping(t, c)
	for name, at := range places(p) {
		copyAll(t, filepath.Join(dir, name), at)
	}
	c.Lead("a")
	p.Start("torchrun", "train.py")
	r := c.Await(t, "a", "runs the next generation", runs(s.Generation+1, 1))
	if r.Incarnation != s.Incarnation+1 {
		t.Errorf("incarnation %d after %d", r.Incarnation, s.Incarnation)
	}
	p.Out.Await(t, fmt.Sprintf("start %d\n", s.Sealed))
}

// goOnFromStorage: another pod has nothing but the claim.
func goOnFromStorage(t *testing.T, dir string, s stored) {
	c := coordtest.Start(t)
	p := keeping(t, c)
	copyAll(t, filepath.Join(dir, "claim"), places(p)["claim"])
	next := s.Generation + 1
	c.Direct("a", &v1.Directive{Protocol: 2, Generation: s.Generation, Order: v1.Order_ORDER_HALT, Run: &v1.Generation{WorldSize: 1}, Fetch: &v1.Mark{Step: s.Durable, Generation: s.Generation}})
	p.Start("torchrun", "train.py")
	c.Await(t, "a", "has fetched", func(r *v1.Report) bool { return newest(r) == s.Durable })
	c.Direct("a", &v1.Directive{Protocol: 2, Generation: next, Order: v1.Order_ORDER_RUN,
		Run: &v1.Generation{Number: next, WorldSize: 1, Nodes: 1, MasterAddr: "127.0.0.1", RestoreStep: s.Durable}})
	p.Out.Await(t, fmt.Sprintf("start %d\n", s.Durable))
}
