//go:build linux

package checkpoint

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/test/trainer"
)

var (
	memoryLosses = flag.Int("losses", 3, "how often all pods lose their memory")
	stormKills   = flag.Int("storm-kills", 6, "kills before each such loss, while steps are copied")
)

// TestStorageOutlivesMemory kills ranks and agents while steps are copied to storage without a pause, then removes all memory: every step
// with a manifest is intact, and the new pods resume from the newest.
func TestStorageOutlivesMemory(t *testing.T) {
	const state = 1 << 20
	mount := t.TempDir()
	g := newGang(t, 2, state+16384, mount, interpreter, trainer.File(t, trainer.Script), "0", fmt.Sprint(state))
	generation, pids := g.running(0)
	start := uint64(0)
	for loss := range *memoryLosses {
		_, had := g.d.Durable()
		for n := 0; n < *stormKills; n++ {
			best := g.watch(start, time.Duration(g.rng.IntN(200_000))*time.Microsecond, false)
			g.kill(pids, false)
			old := generation
			generation, pids = g.running(old)
			start = g.checkRestart(old, generation, best)
		}
		g.awaitManifest(had)
		for _, p := range g.pods {
			p.lose(t)
		}
		durable, _ := g.d.Durable()
		g.readAll(mount)
		for _, p := range g.pods { // the last report of an agent does not hold for the pod that replaces it
			g.c.Forget(p.Name)
		}
		for _, p := range g.pods {
			p.start()
		}
		old := generation
		generation, pids = g.running(old)
		start = g.checkRestart(old+1<<40, generation, durable)
		t.Logf("loss %d: generation %d began with step %d from storage", loss, generation, start)
	}
	g.checkMemory()
	_, manifests := g.d.Durable()
	t.Logf("%d manifests while steps were copied without a pause", manifests)
	g.checkSaves()
}

// awaitManifest waits until one more step is complete, and part of the next is being copied.
func (g *gang) awaitManifest(had int) {
	g.t.Helper()
	eventually.Holds(g.t, "another manifest", func() (bool, any) {
		var said []*v1.Report
		for _, p := range g.pods {
			said = append(said, g.c.Report(p.Name))
		}
		_, n := g.d.Durable()
		return n > had, said
	})
	time.Sleep(time.Duration(g.rng.IntN(50)) * time.Millisecond) // waits for nothing: it makes the moment random
}

// readAll reads every complete step independently of the agents. A superseded step may be removed meanwhile, its manifest first.
func (g *gang) readAll(mount string) {
	g.t.Helper()
	s := store.New(store.OS{}, filepath.Join(mount, "gang-uid"), "stranger")
	complete, err := s.Complete()
	if err != nil || len(complete) == 0 {
		g.t.Fatalf("complete steps %v: %v", complete, err)
	}
	for _, m := range complete {
		if wrong := g.readStep(s, m); wrong != nil {
			if complete, err = s.Complete(); err != nil || slices.Contains(complete, m) {
				g.t.Fatalf("step %v: %v, %v", m, wrong, err)
			}
		}
	}
}

// readStep reads a step that has a manifest.
func (g *gang) readStep(s *store.Store, m protocol.Mark) error {
	manifest, err := s.Manifest(m)
	if err != nil || len(manifest.Ranks) != g.ranks {
		return fmt.Errorf("the manifest: %+v, %w", manifest, err)
	}
	for rank, want := range manifest.Ranks {
		f, err := s.Get(context.Background(), m, uint32(rank), func(format.RankFile) (io.Writer, error) { return io.Discard, nil })
		if err != nil || f.Length != want.Length || f.Checksum != want.Checksum {
			return fmt.Errorf("rank %d's file is %+v, %w", rank, f, err)
		}
	}
	return nil
}

// checkSaves checks that few saves are skipped, also while steps are copied: in the best stretch of each generation's ranks, as a busy
// machine may delay a seal now and then, but not all the time.
func (g *gang) checkSaves() {
	g.t.Helper()
	raw, err := os.ReadFile(g.log)
	if err != nil {
		g.t.Fatal(err)
	}
	fewest, saved, skipped := proctest.FewestSkipped(string(raw))
	g.t.Logf("%d saves and %d skipped", saved, skipped)
	if fewest > 1 {
		g.t.Errorf("%d of %d saves in a row were skipped at best: sealing or copying is in the way of training", fewest, proctest.Stretch)
	}
}
