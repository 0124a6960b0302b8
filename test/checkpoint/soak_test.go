//go:build linux

package checkpoint

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/elastic/restore"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol/protocoltest"
	"holdfast.dev/holdfast/test/trainer"
)

var (
	soakSaves = flag.Int("soak-saves", 2000, "saves during which nothing may grow")
	soakTorch = flag.Bool("soak-torch", false, "keep the state as a tensor of PyTorch")
)

const (
	soakState = 64 << 10
	// soakLooks is the number of measurements. The first quarter is ignored, while caches fill and heaps grow.
	soakLooks = 40
	soakWarm  = soakLooks / 4
	// mostGrowth is how much a heap may differ between two measurements of the same work. Numbers of descriptors and threads may differ by
	// the work that is pending.
	mostGrowth  = 2 << 20
	mostHandles = 4
)

// usage is a process's own memory, descriptors and threads.
type usage struct{ bytes, descriptors, threads int }

// usageOf reads it; shared memory, such as arenas, is left out.
func usageOf(pid int) (u usage, ok bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, false
	}
	for line := range strings.Lines(string(status)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		n, _ := strconv.Atoi(words[1])
		switch words[0] {
		case "RssAnon:":
			u.bytes = n << 10
		case "Threads:":
			u.threads = n
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	u.descriptors = len(open)
	return u, err == nil && u.bytes > 0
}

// storageProcess is the pid of the storage process of the agent with that pid.
func storageProcess(agent int) (int, bool) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", agent))
	for _, list := range lists {
		raw, _ := os.ReadFile(list)
		for child := range strings.FieldsSeq(string(raw)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.HasSuffix(strings.TrimRight(string(line), "\x00"), "holdfast-agent\x00storage") {
				pid, err := strconv.Atoi(child)
				return pid, err == nil
			}
		}
	}
	return 0, false
}

// TestSoak: over many saves, with steps copied to storage all the time, the memory, descriptors and threads of trainer, agent and storage
// process do not grow. make soak does ten thousand.
func TestSoak(t *testing.T) {
	command := []string{interpreter, trainer.File(t, trainer.Script), "0", fmt.Sprint(soakState)}
	if *soakTorch {
		if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
			t.Fatalf("torch is missing at %s: %v", python, err)
		}
		command[0] = python
		t.Setenv("TRAINER_KEEPS", "tensor")
	}
	g := newGangOf(t, 1, 1, 2*soakState, t.TempDir(), command...)
	_, ranks := g.running(0)
	pod := g.pods[0]
	agent := pod.AgentPID()
	var storage int
	eventually.Holds(t, "a process for storage", func() (ok bool, _ any) { storage, ok = storageProcess(agent); return ok, storage })
	processes := map[string]int{"trainer": ranks[0], "agent": agent, "storage": storage}

	looks, began := map[string][]usage{}, time.Now()
	for i := range soakLooks {
		want := (i + 1) * *soakSaves / soakLooks
		eventually.Holds(t, fmt.Sprintf("%d saves", want), func() (bool, any) {
			step := restore.Last(protocoltest.FirstBranch(pod.sealed(0)...)).Step
			return step >= int64(want), step
		})
		for name, pid := range processes {
			u, ok := usageOf(pid)
			if !ok {
				t.Fatalf("%s, process %d, is gone", name, pid)
			}
			looks[name] = append(looks[name], u)
		}
	}
	_, manifests := g.d.Durable()
	t.Logf("%d saves in %s, %d of them durable", *soakSaves, time.Since(began).Round(time.Millisecond), manifests)
	for name, all := range looks {
		all = all[soakWarm:]
		first, last := middle(all[:len(all)/3]), middle(all[len(all)-len(all)/3:])
		t.Logf("%s: %d KiB, %d descriptors, %d threads after a quarter of the saves; %d KiB, %d, %d at the end", name,
			first.bytes>>10, first.descriptors, first.threads, last.bytes>>10, last.descriptors, last.threads)
		if last.bytes > first.bytes+mostGrowth || last.descriptors > first.descriptors+mostHandles || last.threads > first.threads+mostHandles {
			t.Errorf("%s grows: from %+v to %+v", name, first, last)
		}
	}
	if manifests == 0 {
		t.Error("no step was durable")
	}
}

// middle returns the median of each figure.
func middle(all []usage) usage {
	of := func(figure func(usage) int) int {
		var sorted []int
		for _, u := range all {
			sorted = append(sorted, figure(u))
		}
		slices.Sort(sorted)
		return sorted[len(sorted)/2]
	}
	return usage{
		of(func(u usage) int { return u.bytes }),
		of(func(u usage) int { return u.descriptors }),
		of(func(u usage) int { return u.threads }),
	}
}
