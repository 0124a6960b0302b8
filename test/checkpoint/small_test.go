//go:build linux

package checkpoint

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/trainer"
)

// Limits of what the agent may cost its container.
const (
	maxBinary   = 15 << 20
	maxResident = 64 << 20
	// maxDelay is the promised limit. One of several tries must keep it, because the machine may be busy.
	maxDelay = 100 * time.Millisecond
)

// TestAgentIsOneSmallStaticBinary: the agent must run in any image, and it is copied into each pod.
func TestAgentIsOneSmallStaticBinary(t *testing.T) {
	binaries := []string{proctest.Agent()}
	if built := "../../bin/holdfast-agent"; exists(built) { // images are built from this binary
		binaries = append(binaries, built)
	}
	for _, binary := range binaries {
		st, err := os.Stat(binary)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", binary, st.Size())
		if st.Size() > maxBinary {
			t.Errorf("%s has %d bytes, more than %d", binary, st.Size(), maxBinary)
		}
		f, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s needs a dynamic loader", binary)
			}
		}
		if needs, err := f.DynString(elf.DT_NEEDED); err != nil || len(needs) > 0 {
			t.Errorf("%s needs libraries: %v, %v", binary, needs, err)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// checkMemory checks the memory of all agents, without their arenas.
func (g *gang) checkMemory() {
	g.t.Helper()
	for _, p := range g.pods {
		used := p.resident(g.t)
		g.t.Logf("agent of %s: %.1f MiB resident without arenas", p.Name, float64(used)/(1<<20))
		if used >= maxResident {
			g.t.Errorf("the agent of %s has %d MiB resident without arenas, not below %d", p.Name, used>>20, maxResident>>20)
		}
	}
}

// resident returns the memory of the pod's agent and of its storage process, without arenas. resident reads the mappings, because the
// kernel counts an arena on a disk like any other file.
func (p *pod) resident(t *testing.T) (bytes int) {
	t.Helper()
	eventually.Holds(t, "an agent of pod "+p.Name, func() (bool, any) {
		pid, ok := p.LookForAgent()
		if !ok { // the agent was killed, and init starts the next one
			return false, "none"
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
		bytes = rss(t, string(raw))
		if storage, ok := storageProcess(pid); ok && bytes > 0 {
			raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", storage))
			bytes += rss(t, string(raw))
		}
		return bytes > 0, err
	})
	return bytes
}

// rss adds up the resident memory of all mappings of /proc/PID/smaps except arenas.
func rss(t *testing.T, smaps string) (bytes int) {
	t.Helper()
	arena := false
	for line := range strings.Lines(smaps) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case !strings.HasSuffix(words[0], ":"): // the next mapping
			arena = strings.Contains(line, ".arena")
		case words[0] == "Rss:" && !arena:
			kib, err := strconv.Atoi(words[1])
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			bytes += kib << 10
		}
	}
	return bytes
}

// own returns a process's private memory and the memory that agent and storage process share: memory that the kernel cannot reclaim.
func own(t *testing.T, pid int) (bytes int) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	counted := "Anonymous:"
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case !strings.HasSuffix(words[0], ":"): // the next mapping
			counted = "Anonymous:"
			if strings.Contains(line, "memfd:") {
				counted = "Rss:"
			}
		case words[0] == counted:
			kib, err := strconv.Atoi(words[1])
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			bytes += kib << 10
		}
	}
	return bytes
}

// TestEightRanksFit: a container's memory is increased for init, agent and storage process. That memory suffices for eight ranks while the
// steps of all ranks are being copied, each larger than one piece of a copy.
func TestEightRanksFit(t *testing.T) {
	const state = 18 << 20
	g := newGangOf(t, 1, 8, state+32768, t.TempDir(), interpreter, trainer.File(t, trainer.Script), "0.1", fmt.Sprint(state))
	g.running(0)
	g.awaitManifest(0)
	agent := g.pods[0].AgentPID()
	storage, ok := storageProcess(agent)
	if !ok {
		t.Fatal("nothing reaches storage for the agent")
	}
	most := 0
	_, had := g.d.Durable()
	eventually.Holds(t, "three more durable steps", func() (bool, any) {
		most = max(most, own(t, g.pods[0].Init.Process.Pid)+own(t, agent)+own(t, storage))
		_, n := g.d.Durable()
		return n >= had+3, n
	})
	t.Logf("%.1f MiB at most", float64(most)/(1<<20))
	if most >= maxResident {
		t.Errorf("init, agent and what reaches storage hold %d MiB, not below %d", most>>20, maxResident>>20)
	}
}

// TestFirstProcessStartsAtOnce: init and agent do not delay the user's command.
func TestFirstProcessStartsAtOnce(t *testing.T) {
	date, err := exec.LookPath("date")
	if err != nil {
		t.Skipf("SKIPPED: how late the first process starts: %v", err)
	}
	command := []string{date, "+%s%N"}
	reported := func(out string) time.Time {
		t.Helper()
		for _, word := range slices.Backward(strings.Fields(out)) { // the agent may have written a line, too
			if ns, err := strconv.ParseInt(word, 10, 64); err == nil && ns > 1e18 {
				return time.Unix(0, ns)
			}
		}
		t.Fatalf("no time of day in %q", out)
		return time.Time{}
	}
	p := startPod(t, coordtest.Start(t), "pod-0", map[string]string{"HOLDFAST_RANKS": "1", "HOLDFAST_STATE_BYTES": "65536", "HOLDFAST_STANDBYS": "off"}, command...)
	ended := func() {
		t.Helper()
		select {
		case <-p.Ended():
		case <-time.After(eventually.Timeout):
			t.Fatal("the pod does not end with its command")
		}
	}
	ended() // run once without measuring: the binary is read from disk
	const tries = 50
	least := time.Hour
	for n := 0; n < tries && least >= maxDelay; n++ {
		had, begin := len(p.Out.String()), time.Now()
		p.start()
		ended()
		with := reported(p.Out.String()[had:]).Sub(begin)

		begin = time.Now()
		out, err := exec.Command(date, command[1:]...).Output()
		if err != nil {
			t.Fatal(err)
		}
		bare := reported(string(out)).Sub(begin)
		least = min(least, with-bare)
		t.Logf("the first process starts %s later than bare (%s and %s)", (with - bare).Round(100*time.Microsecond), with, bare)
	}
	if least >= maxDelay {
		t.Errorf("the first process starts %s later than bare in the best of %d tries", least, tries)
	}
}
