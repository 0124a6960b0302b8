package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/bench/rivals"
)

// launcher is another launcher.
type launcher struct {
	name, home string
	// server starts what all nodes need; "": the first node serves. node starts one. In both %[1]d is a port.
	server, node string
	// env is the environment of a node's process; nodes have numbers in order of their start, and an index that a new one takes over.
	env func(port, number, index int) []string
	// detects matches the first line of a node that says that ranks or another node were lost.
	detects *regexp.Regexp
}

// lostLine is the line with which torch's agent ends the ranks that are left.
var lostLine = regexp.MustCompile(`failed \(exitcode|closing signal|Worker group FAILED|Worker group UNHEALTHY`)

var launchers = []launcher{
	{
		name: systemTorchrun, home: "/opt/holdfast-python/venv",
		node: fmt.Sprintf("torchrun --nnodes=1:%d --nproc-per-node=%d --max-restarts=100 --local-addr=127.0.0.1 --rdzv-backend=c10d --rdzv-id=bench "+
			"--rdzv-endpoint=127.0.0.1:%%[1]d", pods, ranksEach),
		// Without it torchrun's restarts of gloo ranks fail (docs/benchmarks.md, Recovery).
		env:     func(int, int, int) []string { return []string{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"} },
		detects: lostLine,
	},
	{
		name: systemDLRover, home: rivals.Home,
		server: fmt.Sprintf("python3 -m dlrover.python.master.main --port %%[1]d --node_num %d --job_name bench --platform local", pods),
		node:   fmt.Sprintf("dlrover-run --nnodes=1:%d --nproc_per_node=%d --max_restarts=100", pods, ranksEach),
		env: func(port, number, index int) []string {
			return []string{
				fmt.Sprintf("DLROVER_MASTER_ADDR=127.0.0.1:%d", port), fmt.Sprintf("NODE_ID=%d", number), fmt.Sprintf("NODE_RANK=%d", index),
				fmt.Sprintf("WORKER_RANK=%d", index), fmt.Sprintf("NODE_NUM=%d", pods), "NODE_TYPE=worker", "JOB_NAME=bench",
			}
		},
		detects: lostLine,
	},
}

// group is a job under another launcher: a process for each node, beside each other.
type group struct {
	*launcher
	*events
	port    int
	script  string
	stops   map[string]func()
	mu      sync.Mutex
	after   time.Time // lines before it do not count
	noticed time.Time
}

// underLauncher loses a node of a launcher's job, and starts it again.
func (b *bench) underLauncher(ctx context.Context, l *launcher, n int) error {
	if !rivals.Installed(l.home, strings.Fields(l.node)[0]) {
		b.say("%s: not installed: run hack/rivals.sh", l.name)
		b.Add(caseLost, l.name, notInstalled, "bool", 1)
		return nil
	}
	folder := filepath.Join(b.folder, fmt.Sprintf("%s-%d", l.name, n))
	script := filepath.Join(b.folder, "train.py")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(script, []byte(trainScript), 0o644)); err != nil {
		return err
	}
	g := &group{launcher: l, events: newEvents(folder), script: script, stops: map[string]func(){}}
	defer g.stopAll()
	began := time.Now()
	if err := g.begin(ctx); err != nil {
		return err
	}
	if _, err := g.wentOn(ctx, "first steps", 3*time.Minute, all, began); err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	if err := g.more(ctx, all, before); err != nil {
		return err
	}
	went, err := b.losesNode(ctx, g)
	if err != nil {
		return err
	}
	if went {
		if err := g.more(ctx, fewer, between); err != nil {
			return err
		}
	}
	if went, err = b.getsNode(ctx, g); err != nil || !went {
		return err
	}
	if err := g.more(ctx, all, between); err != nil {
		return err
	}
	b.account(l.name, g.Steps())
	return nil
}

// losesNode kills all processes of the second node.
func (b *bench) losesNode(ctx context.Context, g *group) (bool, error) {
	at := time.Now()
	g.mu.Lock()
	g.after = at
	g.mu.Unlock()
	g.stop(nodeName(1))
	c, err := g.wentOn(ctx, "steps of the ranks that are left", b.limit(), fewer, at)
	if ctx.Err() != nil {
		return false, err
	}
	if err != nil {
		b.Add(caseLost, g.name, noStep, "s", b.limit().Seconds())
		b.say("%s: node lost: no new step within %s", g.name, b.limit())
		return false, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.noticed.IsZero() || g.noticed.After(c.first) {
		return false, fmt.Errorf("%s went on and did not say that ranks were lost; last lines %q", g.name, g.Tail(8))
	}
	b.lost(g.name, at, g.noticed, c)
	b.say("%s: node lost: detected after %.2f s, first new step %.2f s later, %d steps again", g.name, g.noticed.Sub(at).Seconds(),
		c.first.Sub(g.noticed).Seconds(), c.again)
	return true, nil
}

// getsNode starts the second node again.
func (b *bench) getsNode(ctx context.Context, g *group) (bool, error) {
	at := time.Now()
	if err := g.start(pods, 1); err != nil {
		return false, err
	}
	c, err := g.wentOn(ctx, "steps with the node that joins", b.limit(), all, at)
	if ctx.Err() != nil {
		return false, err
	}
	if err != nil {
		b.Add(caseJoined, g.name, noStep, "s", b.limit().Seconds())
		b.say("%s: node back: no step of all ranks within %s", g.name, b.limit())
		return false, nil
	}
	b.joined(g.name, at, c)
	b.say("%s: node back: %.2f s to its first step, of these %.2f s without a step, %d steps again", g.name, c.first.Sub(at).Seconds(),
		c.first.Sub(c.last).Seconds(), c.again)
	return true, nil
}

func nodeName(number int) string { return fmt.Sprintf("node-%d", number) }

// begin starts the server and all nodes; the first node serves where there is no server.
func (g *group) begin(ctx context.Context) (err error) {
	if g.port, err = rivals.FreePort(); err != nil {
		return err
	}
	if g.server != "" {
		if err := g.launch("server", g.server, nil); err != nil {
			return err
		}
	}
	for i := range pods {
		if i == 1 && g.server == "" || i == 0 && g.server != "" {
			if err := g.serves(ctx); err != nil {
				return err
			}
		}
		if err := g.start(i, i); err != nil {
			return err
		}
	}
	return nil
}

// serves waits until the port is served.
func (g *group) serves(ctx context.Context) error {
	return eventually.Wait(ctx, "the rendezvous of "+g.name, time.Minute, func(context.Context) (bool, any) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", g.port))
		if err == nil {
			_ = c.Close()
		}
		return err == nil, fmt.Sprintf("%v; last lines %q", err, g.Tail(6))
	})
}

// start starts a node.
func (g *group) start(number, index int) error {
	line := g.node + " " + g.script + " " + g.folder
	return g.launch(nodeName(number), line, append(g.env(g.port, number, index), "BENCH_POD="+nodeName(number)))
}

// launch starts a program in a folder of its own, by which all its processes are found.
func (g *group) launch(name, line string, env []string) error {
	folder := filepath.Join(g.folder, name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if strings.Contains(line, "%[1]d") {
		line = fmt.Sprintf(line, g.port)
	}
	stop, err := rivals.Start(g.home, strings.Fields(line), env, folder, func(text string, now time.Time) { g.line(name, text, now) })
	if err == nil {
		g.stops[name] = stop
	}
	return err
}

// line takes one line of output as it arrives.
func (g *group) line(node, text string, now time.Time) {
	g.Line(node, text)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.after.IsZero() && g.noticed.IsZero() && g.detects.MatchString(text) {
		g.noticed = now
	}
}

func (g *group) stop(name string) {
	if stop := g.stops[name]; stop != nil {
		delete(g.stops, name)
		stop()
	}
}

func (g *group) stopAll() {
	for name := range g.stops {
		g.stop(name)
	}
}
