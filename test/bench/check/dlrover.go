package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/bench/rivals"
)

// What dlrover-run prints: its first line before, and its last line after the check of a node.
var (
	dlroverBegins = regexp.MustCompile(`starting node-check workers`)
	dlroverEnds   = regexp.MustCompile(`Network check result is (True|False)`)
)

// dlroverFolder is where dlrover-run keeps what the ranks of a node have measured.
const dlroverFolder = "/tmp/dlrover"

// dlrover is the check of all nodes.
type dlrover struct {
	mu           sync.Mutex
	began, ended time.Time
	passed       int
	last         []string
}

// line takes one line of output as it arrives.
func (d *dlrover) line(text string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last = append(d.last, text); len(d.last) > 6 {
		d.last = d.last[1:]
	}
	if d.began.IsZero() && dlroverBegins.MatchString(text) {
		d.began = now
	}
	if m := dlroverEnds.FindStringSubmatch(text); m != nil && m[1] == "True" {
		d.passed, d.ended = d.passed+1, now
	}
}

// took returns the time of the check, once all nodes have passed.
func (d *dlrover) took() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended.Sub(d.began), d.passed == pods && !d.began.IsZero()
}

func (d *dlrover) tail() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("%d nodes passed; the last lines: %q", d.passed, d.last)
}

// underDLRover starts dlrover-run's master and its agents once.
func (b *bench) underDLRover(ctx context.Context, kase, name string) error {
	if !rivals.Installed(rivals.Home, systemDLRover) {
		b.say("%s, %s: not installed: run hack/rivals.sh", kase, systemDLRover)
		b.Add(kase, systemDLRover, notInstalled, "bool", 1)
		return nil
	}
	folder := filepath.Join(b.folder, name)
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "plain.py"), []byte(script), 0o644)); err != nil {
		return err
	}
	port, err := rivals.FreePort()
	if err != nil {
		return err
	}
	d := &dlrover{}
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	start := func(argv []string, env ...string) error {
		stop, err := rivals.Start(rivals.Home, argv, env, folder, d.line)
		if err == nil {
			stops = append(stops, stop)
		}
		return err
	}
	master := fmt.Sprintf("python3 -m dlrover.python.master.main --port %d --node_num %d --job_name %s --platform local", port, pods, name)
	if err := start(strings.Fields(master)); err != nil {
		return err
	}
	for node := range pods {
		line := fmt.Sprintf("dlrover-run --network-check --nnodes=%d --nproc_per_node=%d plain.py", pods, ranks)
		agent := rivals.Apart(fmt.Sprintf("node-%d", node), dlroverFolder, strings.Fields(line)...)
		env := []string{
			fmt.Sprintf("DLROVER_MASTER_ADDR=127.0.0.1:%d", port), fmt.Sprintf("NODE_NUM=%d", pods), "NODE_TYPE=worker", "JOB_NAME=" + name,
			fmt.Sprintf("NODE_ID=%d", node), fmt.Sprintf("NODE_RANK=%d", node), fmt.Sprintf("WORKER_RANK=%d", node),
		}
		if err := start(agent, env...); err != nil {
			return err
		}
	}
	err = eventually.Wait(ctx, "the node check of "+systemDLRover, limit, func(context.Context) (bool, any) { _, ok := d.took(); return ok, d.tail() })
	if took, ok := d.took(); ok {
		b.Add(kase, systemDLRover, checkTime, "s", took.Seconds())
		b.say("%s, %s: checked in %.1f s", kase, systemDLRover, took.Seconds())
		return nil
	}
	if ctx.Err() == nil {
		b.Add(kase, systemDLRover, noCheck, "s", limit.Seconds())
	}
	return err
}
