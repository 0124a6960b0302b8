//go:build linux

package checkpoint

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// pod has the processes of a training container, without a container: init, agent, launcher, ranks.
type pod struct {
	*proctest.Container
	command []string
	lives   int
}

func startPod(t *testing.T, c *coordtest.Coordinator, name string, env map[string]string, command ...string) *pod {
	t.Helper()
	p := &pod{Container: proctest.New(t, name), command: command}
	p.Errs = p.Out
	p.Coordinator(c.Address(), c.CA)
	p.Env["PATH"], p.Env["HOME"], p.Env["HOLDFAST_ROOT"], p.Env["PYTHONDONTWRITEBYTECODE"] = os.Getenv("PATH"), p.Dir, p.Root, "1"
	p.Env["TRAINER_KEEPS"] = os.Getenv("TRAINER_KEEPS")
	maps.Copy(p.Env, env)
	p.start()
	t.Cleanup(func() { p.end(t) })
	return p
}

// start starts the processes, each time as those of another pod.
func (p *pod) start() {
	p.lives++
	p.Env["HOLDFAST_POD_UID"] = fmt.Sprintf("uid-%s-%d", p.Name, p.lives)
	p.Start(p.command...)
}

// lose simulates the loss of the pod's node: all processes end at once, and memory is lost.
func (p *pod) lose(t *testing.T) {
	t.Helper()
	p.Kill()
	p.loseMemory(t)
}

// loseMemory removes the memory of a pod that has ended.
func (p *pod) loseMemory(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"memory", "run"} {
		if err := os.RemoveAll(filepath.Join(p.Root, dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(p.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// end shuts the pod down as a kubelet does.
func (p *pod) end(t *testing.T) {
	_ = p.Init.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Ended():
	case <-time.After(20 * time.Second):
		t.Errorf("pod %s did not end within 20 s of SIGTERM", p.Name)
	}
}

// sealed reads the steps in a rank's arena without the agent.
func (p *pod) sealed(local int) []int64 {
	f, err := os.Open(filepath.Join(p.Root, "memory", fmt.Sprintf("rank-%d.arena", local)))
	if err != nil {
		return nil
	}
	defer f.Close()
	meta := make([]byte, format.MetaBytes)
	if _, err := f.ReadAt(meta, 0); err != nil {
		return nil
	}
	book, err := format.Open(meta)
	if err != nil {
		return nil
	}
	return book.Sealed()
}
