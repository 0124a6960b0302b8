//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"holdfast.dev/holdfast/test/bench/rivals"
)

const (
	dlrover = "dlrover"
	// dlroverViews restores as dlrover comes: moments stay views of the saved state, which training then changes.
	dlroverViews = "dlrover-views"
	dlroverAgent = "dlrover-agent"
	notInstalled = "not_installed"
)

// packagesOf returns the folder of the packages that hack/rivals.sh installs; empty: there is no dlrover. Its processes run under the
// interpreter of all other systems, and take only what that one lacks from this folder.
func packagesOf(home string) string {
	found, _ := filepath.Glob(filepath.Join(home, "lib/python3*/site-packages/dlrover"))
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[0])
}

// withoutMissing removes dlrover from the systems of a case if it is not installed, and reports that as a row.
func (b *bench) withoutMissing(kase string) {
	if slices.Contains(b.chosen, dlrover) && packagesOf(rivals.Home) == "" {
		fmt.Fprintf(b.progress, "%s: %s is not installed: run hack/rivals.sh\n", kase, dlrover)
		b.set.Add(kase, dlrover, notInstalled, "bool", 1)
		b.chosen = slices.DeleteFunc(slices.Clone(b.chosen), func(s string) bool { return s == dlrover })
	}
}

// run is the name of a turn's shared memory and sockets.
func (t *turn) run() string { return filepath.Base(t.memory) }

// dlroverEnvironment is that of a rank under dlrover-run.
func (t *turn) dlroverEnvironment(rank int) []string {
	env := []string{"BENCH_DLROVER=" + packagesOf(rivals.Home), "TORCHELASTIC_RUN_ID=" + t.run(), "ROLE_NAME=dlrover-trainer", "NODE_RANK=0"}
	for name, n := range map[string]int{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": t.ranks, "LOCAL_WORLD_SIZE": t.ranks, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1} {
		env = append(env, name+"="+strconv.Itoa(n))
	}
	return env
}

// startDLRover starts the agent's process if one of the systems needs it. stop ends it and removes its shared memory.
func (t *turn) startDLRover(ctx context.Context, order []string) (stop func() error, err error) {
	if !slices.Contains(order, dlrover) {
		return func() error { return nil }, nil
	}
	env := append(t.environment(), t.dlroverEnvironment(0)...)
	w, err := startWorker(ctx, string(t.python), env, dlroverAgent, "0", t.memory, t.disk, "0", "1")
	if err != nil {
		return nil, err
	}
	t.dlroverAgent = &group{system: dlroverAgent, workers: []*worker{w}}
	stop = func() error {
		t.dlroverAgent.stop()
		left, err := filepath.Glob(filepath.Join(memoryFolder, t.run()+"_*"))
		for _, file := range left {
			err = errors.Join(err, os.Remove(file))
		}
		return errors.Join(err, os.RemoveAll(filepath.Join("/tmp/ckpt_sock", t.run())))
	}
	if _, err := t.dlroverAgent.answers("its start"); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}
