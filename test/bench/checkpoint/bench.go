//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/python"
	"holdfast.dev/holdfast/test/bench/figure"
)

// memoryFolder is on a file system in memory, as a pod's arena is.
const memoryFolder = "/dev/shm"

// steady is the number of saves per turn after the first of each process.
const steady = 3

type bench struct {
	options
	set      *figure.Set
	progress io.Writer
	chosen   []string // systems
}

func (b *bench) run(ctx context.Context, shapes []shape) (err error) {
	for _, s := range shapes {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		free, failed := available()
		if failed == nil && free < s.memory {
			failed = fmt.Errorf("it needs %d GiB of memory and %d are free: stop other programs, or choose another of --cases", s.memory/gib, free/gib)
		}
		if failed == nil {
			failed = b.measure(ctx, s)
		}
		if failed != nil {
			b.set.Forget(s.name)
			err = errors.Join(err, fmt.Errorf("%s: no figures: %w", s.name, failed))
		}
	}
	return err
}

// available is the memory that processes may still take.
func available() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var kib int64
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo does not say how much memory is free")
}

// turn is one round of a shape under all systems, each with new processes.
type turn struct {
	*bench
	shape
	memory, disk string
	holder       *holder
	dlroverAgent *group
	step         int
}

// measure takes turns. In each turn every system begins with new processes and the systems save one after another, in rotated order. A
// system's background work ends before the next one saves.
func (b *bench) measure(ctx context.Context, s shape) error {
	b.withoutMissing(s.name)
	turns := b.turns.Or(b.Quick, 1, 5)
	for n := range turns {
		fmt.Fprintf(b.progress, "%s: turn %d of %d\n", s.name, n+1, turns)
		order := slices.Clone(b.chosen)
		for range n % len(order) {
			order = append(order[1:], order[0])
		}
		if err := b.turn(ctx, s, order, n == turns-1); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) turn(ctx context.Context, s shape, order []string, last bool) error {
	t := &turn{bench: b, shape: s}
	err := t.prepare()
	if err == nil && t.shape.device {
		err = t.onDevice(ctx)
	} else if err == nil {
		err = t.play(ctx, order, last)
	}
	return errors.Join(err, t.clean())
}

func (t *turn) prepare() (err error) {
	if t.memory, err = os.MkdirTemp(memoryFolder, "bench-checkpoint-"); err != nil {
		return err
	}
	if t.disk, err = os.MkdirTemp(string(t.options.disk), "bench-checkpoint-"); err != nil {
		return err
	}
	if err := os.CopyFS(t.client(), python.Files); err != nil {
		return err
	}
	if slices.Contains(t.chosen, holdfast) {
		if t.holder, err = newHolder(
			string(t.python),
			t.client(),
			t.memory,
			t.disk,
			t.ranks,
			cmp.Or(t.slots, format.Slots),
			t.bytes+t.bytes/16+16*mib,
		); err != nil {
			return err
		}
	}
	return nil
}

func (t *turn) clean() error {
	if t.holder != nil {
		t.holder.close()
	}
	return errors.Join(os.RemoveAll(t.memory), os.RemoveAll(t.disk))
}

func (t *turn) play(ctx context.Context, order []string, last bool) error {
	together := [][]string{order}
	if t.alone {
		together = nil
		for _, system := range order {
			together = append(together, []string{system})
		}
	}
	for _, some := range together {
		if err := t.savesAndKills(ctx, some); err != nil {
			return err
		}
	}
	if !last || t.killsOnly {
		return nil
	}
	if err := t.manySaves(ctx); err != nil {
		return err
	}
	return t.agentBeside(ctx)
}

// savesAndKills lets these systems save in turns, then kills the processes of each in turn and starts new ones.
func (t *turn) savesAndKills(ctx context.Context, order []string) (err error) {
	end, err := t.startDLRover(ctx, order)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	groups, stop, err := t.start(ctx, order)
	defer func() { stop() }()
	if err != nil {
		return err
	}
	if err := t.saves(ctx, order, groups); err != nil {
		return err
	}
	for _, system := range order {
		for _, way := range restores[system] {
			if groups[system], err = t.kill(ctx, way, groups[system]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *turn) saves(ctx context.Context, order []string, groups map[string]*group) error {
	t.step = 0
	if t.holder != nil {
		t.holder.expect(true)
		defer t.holder.expect(false)
	}
	for n := range 1 + steady {
		t.step++
		for i := range order {
			system := order[(i+n)%len(order)]
			if err := t.save(ctx, system, groups[system], n == 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// start starts, all at once, the processes of the systems that have any.
func (t *turn) start(ctx context.Context, order []string) (map[string]*group, func(), error) {
	groups := map[string]*group{}
	stop := func() {
		for _, g := range groups {
			g.stop()
		}
	}
	for _, system := range order {
		if system == direct {
			continue
		}
		g, err := t.group(ctx, system, 0)
		if groups[system] = g; err != nil {
			return groups, stop, err
		}
	}
	for _, g := range groups {
		all, err := g.answers("its start")
		if err != nil {
			return groups, stop, err
		}
		for i, a := range all {
			g.workers[i].bytes = a.Bytes
		}
	}
	return groups, stop, nil
}

// client is the folder in which the client is installed, as in a pod: Python keeps the compiled modules there.
func (t *turn) client() string { return filepath.Join(t.memory, "client") }

// environment is that of every worker.
func (t *turn) environment() []string {
	return append(os.Environ(), "PYTHONPATH="+t.client(), "PYTHONDONTWRITEBYTECODE=", "LOCAL_WORLD_SIZE="+strconv.Itoa(t.ranks))
}

// group starts the ranks of a system; with restore 0 they will save.
func (t *turn) group(ctx context.Context, system string, restore int) (*group, error) {
	g := &group{system: system}
	// ranks that were killed leave the file in which they met
	if err := os.RemoveAll(filepath.Join(t.memory, fmt.Sprintf("%s-store-%d", system, restore))); err != nil {
		return g, err
	}
	for rank := range t.ranks {
		env := t.environment()
		switch {
		case isHoldfast(system):
			env = append(env, t.holder.environment(rank, int64(restore))...)
		case system == dlrover || system == dlroverViews:
			env = append(env, t.dlroverEnvironment(rank)...)
		}
		w, err := startWorker(ctx, string(t.python), env, t.arguments(system, rank, restore)...)
		if err != nil {
			return g, fmt.Errorf("starting %s with --python: %w", system, err)
		}
		g.workers = append(g.workers, w)
	}
	return g, nil
}

func (t *turn) arguments(system string, rank, restore int) []string {
	args := []string{system, strconv.FormatInt(t.bytes, 10), t.memory, t.disk, strconv.Itoa(rank), strconv.Itoa(t.ranks)}
	if restore > 0 {
		args = append(args, "restore", strconv.Itoa(restore))
	}
	return args
}

// save does one save of one system and waits for its end.
func (t *turn) save(ctx context.Context, system string, g *group, first bool) error {
	if system == direct {
		return t.writeDirect(!first)
	}
	if _, err := g.ask("step"); err != nil {
		return err
	}
	all, err := g.ask("save " + strconv.Itoa(t.step))
	if err != nil {
		return err
	}
	metric := "blocking_stall"
	if first {
		metric = "first_stall"
	}
	t.add(system, metric, most(all, func(a answer) float64 { return a.Stall }))
	if !first && (system == holdfast || system == memcpy) { // the other systems continue in the background
		t.add(system, "save_cpu", most(all, func(a answer) float64 { return a.CPU }))
	}
	began := all[0].At
	for _, a := range all {
		began = min(began, a.At)
	}
	if all, err = g.ask("settle"); err != nil {
		return err
	}
	durable := most(all, func(a answer) float64 { return a.Durable })
	if complete := most(all, func(a answer) float64 { return a.Complete }); complete > 0 && !first {
		t.add(system, "complete", complete)
	}
	if system == holdfast {
		sealed := monotonic()
		at, err := t.holder.persist(ctx, int64(t.step))
		if err != nil {
			return err
		}
		durable = float64(at-began) / 1e9
		if !first {
			t.add(system, "sealed", float64(sealed-began)/1e9)
			t.add(system, "persist", float64(at-sealed)/1e9)
		}
		if _, err := g.ask("durable"); err != nil {
			return err
		}
	}
	if durable > 0 && !first {
		t.add(system, "durable", durable)
	}
	return nil
}

// writeDirect writes the same bytes past the page cache, one file per rank, concurrently: the disk's limit.
func (t *turn) writeDirect(counts bool) error {
	began, errs := time.Now(), make(chan error)
	for rank := range t.ranks {
		go func() { errs <- writeFile(filepath.Join(t.disk, "direct-"+strconv.Itoa(rank)), t.bytes) }()
	}
	var err error
	for range t.ranks {
		err = errors.Join(err, <-errs)
	}
	if counts && err == nil {
		t.add(direct, "durable", time.Since(began).Seconds())
	}
	return err
}

func writeFile(name string, size int64) error {
	piece, err := unix.Mmap(-1, 0, int(8*mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(piece) }()
	for i := range piece {
		piece[i] = byte(i * 7)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_DIRECT, 0o600)
	if err != nil {
		return fmt.Errorf("writing past the page cache below --disk: %w", err)
	}
	for at := int64(0); at < size && err == nil; at += int64(len(piece)) {
		_, err = f.Write(piece)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// manySaves measures the 95th percentile of saves, of holdfast and memcpy in turns; nothing goes to storage.
func (t *turn) manySaves(ctx context.Context) error {
	order := slices.DeleteFunc([]string{memcpy, holdfast}, func(name string) bool { return !slices.Contains(t.chosen, name) })
	if len(order) == 0 {
		return nil
	}
	if t.holder != nil {
		t.holder.begin(0)
	}
	groups, stop, err := t.start(ctx, order)
	defer stop()
	if err != nil {
		return err
	}
	stalls := map[string][]float64{}
	count := t.many.Or(t.Quick, 5, 200)
	for n := range count + 1 {
		t.step = n + 1
		for _, system := range order {
			g := groups[system]
			if _, err := g.ask("step"); err != nil {
				return err
			}
			all, err := g.ask("save " + strconv.Itoa(t.step))
			if err != nil {
				return err
			}
			if _, err := g.ask("settle"); err != nil {
				return err
			}
			if n > 0 { // the first save has a metric of its own
				stalls[system] = append(stalls[system], most(all, func(a answer) float64 { return a.Stall }))
			}
		}
	}
	for _, system := range order {
		slices.Sort(stalls[system])
		t.add(system, "stall_p95", stalls[system][(count*95+99)/100-1])
	}
	return nil
}

// kill kills a system's processes; new ones, started at once, restore the saved state in this way and take a step.
func (t *turn) kill(ctx context.Context, way string, old *group) (*group, error) {
	ready, err := t.standbys(ctx, way, old)
	defer func() {
		for _, h := range ready {
			h.end()
		}
	}()
	if err != nil {
		return old, err
	}
	killed := monotonic()
	old.kill()
	switch {
	case isHoldfast(way):
		t.holder.begin(int64(t.step))
	case way == dlrover || way == dlroverViews:
		if _, err := t.dlroverAgent.one("restart"); err != nil {
			return old, err
		}
	}
	g, err := t.restart(ctx, way, ready)
	ready = nil // they are the group's
	if err != nil {
		return g, err
	}
	if _, err := g.answers("its start"); err != nil {
		return g, err
	}
	all, err := g.ask("restore")
	if err != nil {
		return g, err
	}
	t.add(way, "kill_to_step", most(all, func(a answer) float64 { return float64(a.At-killed) / 1e9 }))
	t.add(way, "restore", most(all, func(a answer) float64 { return a.Restore }))
	t.add(way, "restore_cpu", most(all, func(a answer) float64 { return a.CPU }))
	t.add(way, "start_cpu", most(all, func(a answer) float64 { return a.StartCPU }))
	if load := most(all, func(a answer) float64 { return a.Load }); load > 0 {
		t.add(way, "load", load)
	}
	if way == dlroverViews && !t.killsOnly {
		t.set.Add(t.name, way, "saved_state_changed", "share", most(all, func(a answer) float64 {
			if a.Changed {
				return 1
			}
			return 0
		}))
	}
	return g, nil
}

// restart starts the ranks that will restore, in these standbys if there are any.
func (t *turn) restart(ctx context.Context, way string, ready []*held) (g *group, err error) {
	if len(ready) == 0 {
		return t.group(ctx, way, t.step)
	}
	g = &group{system: way}
	for _, h := range ready {
		g.workers = append(g.workers, h.worker)
	}
	for rank, h := range ready {
		err = errors.Join(err, h.becomes(t.holder.environment(rank, int64(t.step))))
	}
	return g, err
}

// add records a figure in seconds, if this shape measures it.
func (t *turn) add(system, metric string, seconds float64) {
	if !t.killsOnly || metric == "kill_to_step" {
		t.set.Add(t.name, system, metric, "s", seconds)
	}
}
