package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast.dev/holdfast/test/bench/lives"
	"holdfast.dev/holdfast/test/bench/rivals"
)

// groupTimeout is the limit, in seconds, of the process group under torchrun, and of a heartbeat under ft_launcher. Their defaults are 30
// and 45 minutes.
const groupTimeout = "60"

// launcher is another launcher, with what its output says when it finds a hang.
type launcher struct {
	name, home string
	args, env  []string
	// report matches the first line that says that something is wrong; blame matches lines that name a rank in group 1; order matches the
	// line with which it ends the ranks.
	report, blame, order *regexp.Regexp
}

var launchers = []launcher{
	{
		name: "torchrun", home: "/opt/holdfast-python/venv",
		args: []string{"torchrun", "--standalone", "--nproc-per-node=4", "--max-restarts=100"},
		// Without the second one torchrun's restarts of gloo ranks fail (docs/benchmarks.md, Recovery).
		env:    []string{"HANG_GROUP_TIMEOUT=" + groupTimeout, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"},
		report: torchReport, blame: torchBlame, order: torchOrder,
	},
	{
		name: "ft_launcher", home: rivals.Home,
		args: []string{"ft_launcher", "--standalone", "--nproc-per-node=4", "--max-restarts=100",
			"--ft-param-initial_rank_heartbeat_timeout=120", "--ft-param-rank_heartbeat_timeout=" + groupTimeout},
		env:    []string{"HANG_HEARTBEATS=ft", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"},
		report: regexp.MustCompile(`Did not get subsequent heartbeat`),
		blame:  regexp.MustCompile(`RankMonServer\d+@[^:]*:(\d+)\].*Did not get subsequent heartbeat`),
		order:  regexp.MustCompile(`Worker group UNHEALTHY`),
	},
	{
		name: "dlrover-run", home: rivals.Home,
		args:   []string{"dlrover-run", "--standalone", "--nproc_per_node=4", "--max_restarts=100"},
		report: regexp.MustCompile(`(?i)Timed out waiting \d+ms|failed \(exitcode|hang_warning|event_hang|training hang`), blame: torchBlame, order: torchOrder,
	},
}

// What torch and its launcher print.
var (
	torchReport = regexp.MustCompile(`Timed out waiting \d+ms|failed \(exitcode`)
	torchBlame  = regexp.MustCompile(`failed \(exitcode: -?\d+\) local_rank: (\d+)`)
	torchOrder  = regexp.MustCompile(`failed \(exitcode|closing signal`)
)

// installed reports whether the launcher can be started.
func (l *launcher) installed() bool { return rivals.Installed(l.home, l.args[0]) }

// watched collects the output of a launcher.
type watched struct {
	*lives.Record
	*launcher
	mu sync.Mutex
	// from is when the rank stood still; zero: not yet. Lines before it do not count.
	from, reported, ordered time.Time
	names                   []int
}

// line takes one line of output as it arrives.
func (w *watched) line(text string, now time.Time) {
	w.Line(w.name, text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.from.IsZero() {
		return
	}
	if w.reported.IsZero() && w.report.MatchString(text) {
		w.reported = now
	}
	if w.ordered.IsZero() && w.order.MatchString(text) {
		w.ordered = now
	}
	if m := w.blame.FindStringSubmatch(text); m != nil {
		r, _ := strconv.Atoi(m[1])
		w.names = append(w.names, r)
	}
}

// underLaunchers plays a fault under all other launchers beside each other: they wait most of the time.
func (b *bench) underLaunchers(ctx context.Context, fault string) error {
	var g errgroup.Group
	var mu sync.Mutex
	var broken []error
	for _, l := range b.chosenLaunchers() {
		if !l.installed() {
			b.say("%s, %s: not installed: run hack/rivals.sh", fault, l.name)
			b.Add(fault, l.name, notInstalled, "bool", 1)
			continue
		}
		g.Go(func() error {
			o, err := b.underLauncher(ctx, fault, &l)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				broken = append(broken, fmt.Errorf("%s, %s: %w", fault, l.name, err))
				return nil
			}
			b.note(fault, l.name, o, b.limit().Seconds())
			b.say("%s, %s: %s", fault, l.name, o)
			return nil
		})
	}
	err := g.Wait()
	return errors.Join(append(broken, err)...)
}

// underLauncher plays a fault once.
func (b *bench) underLauncher(ctx context.Context, fault string, l *launcher) (outcome, error) {
	folder := filepath.Join(b.folder, l.name+"-"+fault)
	script := filepath.Join(b.folder, l.name+"-"+fault+".py")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(script, []byte(plainScript), 0o644)); err != nil {
		return outcome{}, err
	}
	w := &watched{Record: lives.New(), launcher: l}
	stop, err := w.start(script, folder, fault)
	if err != nil {
		return outcome{}, err
	}
	defer stop()
	if err := w.trains(ctx); err != nil {
		return outcome{}, err
	}
	if err := os.WriteFile(filepath.Join(folder, "play"), nil, 0o644); err != nil {
		return outcome{}, err
	}
	still, err := stoodStill(ctx, w.Record)
	if err != nil {
		return outcome{}, err
	}
	w.mu.Lock()
	w.from = still
	w.mu.Unlock()
	return w.watch(ctx, still, b.limit())
}

// start starts the launcher; stop ends all its processes.
func (w *watched) start(script, folder, fault string) (stop func(), err error) {
	return rivals.Start(w.home, append(slices.Clone(w.args), script, folder, fault), w.env, folder, w.line)
}

// trains waits until the ranks have made steps.
func (w *watched) trains(ctx context.Context) error {
	return until(ctx, 3*time.Minute, "steps under "+w.name, func() bool {
		return len(w.RatesBetween(time.Time{}, time.Now())) >= 3
	}, func() string { return fmt.Sprintf("the last lines: %q", w.Tail(6)) })
}

// watch waits for the report and the new steps, and returns what came.
func (w *watched) watch(ctx context.Context, still time.Time, limit time.Duration) (outcome, error) {
	var resumed lives.Resumption
	over := func() (ok bool) {
		resumed, ok = w.Resumed(ranks, still)
		return ok
	}
	err := until(ctx, limit, "new steps", over, func() string { return "" })
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o := outcome{names: w.names}
	if !w.reported.IsZero() {
		o.reported = w.reported.Sub(still).Seconds()
	}
	if err == nil && !w.ordered.IsZero() {
		o.end(still, w.ordered, resumed)
	}
	return o, nil
}
