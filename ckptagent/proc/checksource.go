//go:build linux

package proc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// CheckSource imports once for all trials of a pod, and forks a process per local rank for each. A fork waits for its order, as a standby
// does, and becomes the process of a trial: it takes the trial's mark, the rank's environment, arguments and an output of its own.
//
// It is not the source of standbys: what a script imports may replace parts of torch, and a check that multiplies by other code than
// torch's names a node.
type CheckSource struct {
	exits *Exits

	mu  sync.Mutex
	job Job
	src *source // nil: none runs
	// unfit is why each process imports for itself; nil: a source is used.
	unfit error
	// ending is closed once nothing is left of the source before; nil: there was none.
	ending chan struct{}
	news   chan struct{} // closed and replaced at each change
}

// Answers of Await that are no reasons to try without a source.
var (
	ErrImporting = errors.New("the imports have not ended")
	ErrStopped   = errors.New("the trial is not wanted any more")
)

var errEnded = errors.New("their source was ended")

// checkModules are what holdfast_check.py imports.
var checkModules = []string{"torch", "torch.distributed"}

// checkForkTimeout is how long forks of a source that has imported may take until all wait. On an idle machine they take some 10 ms.
const checkForkTimeout = 10 * time.Second

// maxCheckMark exceeds the bytes by which the mark of a trial is longer than that of its container. Forks write theirs over the source's.
const maxCheckMark = 256

// SourceMark is the mark of the source of a container's trials, and of what its imports start.
func SourceMark(mark string) string { return mark + "/check/" + strings.Repeat("-", maxCheckMark) }

// NewCheckSource returns one that starts at the first trial.
func NewCheckSource(exits *Exits) *CheckSource {
	return &CheckSource{exits: exits, news: make(chan struct{})}
}

// Await starts the source, unless it runs, and returns nil once a fork waits for each local rank; ErrImporting after within; ErrStopped
// once stop is closed. Another error is why each process of the trial must import for itself.
func (c *CheckSource) Await(job Job, t protocol.Trial, within time.Duration, stop <-chan struct{}) error {
	over := time.NewTimer(within)
	defer over.Stop()
	var forked <-chan time.Time
	src := c.sourceFor(job, t)
	for {
		ready, importing, news, err := c.look(src)
		if ready || err != nil {
			return err
		}
		if !importing && forked == nil {
			forked = time.After(checkForkTimeout)
		}
		select {
		case <-news:
		case <-stop:
			return ErrStopped
		case <-over.C:
			if importing {
				return ErrImporting
			}
		case <-forked:
			c.mu.Lock()
			c.fail(src, fmt.Errorf("its forks did not answer within %s", checkForkTimeout))
			c.mu.Unlock()
		}
	}
}

// sourceFor starts the source if none runs; nil: none can.
func (c *CheckSource) sourceFor(job Job, t protocol.Trial) *source {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.src == nil && c.unfit == nil {
		c.unfit = c.start(job, t)
	}
	return c.src
}

// look returns how far a source is; news is closed at the next change.
func (c *CheckSource) look(src *source) (ready, importing bool, news <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.unfit != nil:
		return false, false, c.news, c.unfit
	case src == nil || c.src != src:
		return false, false, c.news, errEnded
	}
	ready = !c.src.imports()
	for _, b := range c.src.standbys {
		if b.waits() && !b.rank.Alive() {
			b.enter(standbyForking, Process{}) // its source forks another
		}
		ready = ready && b.waits()
	}
	return ready, c.src.imports(), c.news, nil
}

// start starts the source of the job's trials.
func (c *CheckSource) start(job Job, t protocol.Trial) error {
	select {
	case <-c.ending:
	default:
		if c.ending != nil {
			return errors.New("the source before has not ended")
		}
	}
	argv, err := job.checkArgv()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("starting a check: %w", err)
	}
	defer null.Close()
	locals := make([]int, job.Spec.Ranks)
	for i := range locals {
		locals[i] = i
	}
	c.job = job
	job.Mark = SourceMark(job.Mark)
	src, err := newSource(&job, argv, [3]*os.File{null, null, null}, checkRun(t), locals)
	if err != nil {
		return err
	}
	c.src = src
	for _, b := range src.standbys {
		go c.listen(src, func() bool { return lines(b.line, func(said readyLine) { c.onReady(job, b, said) }) })
	}
	go c.listen(src, func() bool { return lines(src.control, func(said warmLine) { c.onWarm(src, said) }) })
	go func() {
		exit := src.process.Wait(c.exits)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(src, fmt.Errorf("their source ended with exit code %d", exit.Code))
	}()
	message := map[string]any{"modules": checkModules, "own": job.own(checkRun(t)), "later": later, "marks": true}
	go func() { _ = sendLine(src.control, message) }() // if it has ended, Wait returns
	return nil
}

func (c *CheckSource) listen(src *source, read func() bool) {
	if !read() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(src, errors.New("their source sent an invalid line"))
	}
}

// onWarm handles a message of the source.
func (c *CheckSource) onWarm(src *source, said warmLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.src != src || !said.Warm:
	case said.Alone != "" || said.Why != "":
		c.fail(src, errors.New(said.Alone+said.Why))
	case said.CUDA:
		c.fail(src, errors.New("imports of their source open a device"))
	case said.Imported < len(checkModules):
		c.fail(src, fmt.Errorf("their source cannot import all of %s", strings.Join(checkModules, " ")))
	case src.enter(sourceWarm):
		src.fork(time.Now())
		c.changed()
	}
}

// onReady records that a fork waits. job has the source's mark.
func (c *CheckSource) onReady(job Job, b *standby, said readyLine) {
	p, ok := job.ownSession(said.PID) // outside the lock: it may start a program
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !ok || !said.Ready || c.src != b.source: // it has ended and its source forks another, or it is a foreign process
	case p.PID == c.src.process.PID:
		c.fail(c.src, errors.New("their source cannot be copied"))
	default:
		b.enter(standbyReady, p)
		c.changed()
	}
}

// StartCheck is as Job.StartCheck, of the job of Await, in the fork that waits for that rank.
func (c *CheckSource) StartCheck(t protocol.Trial, local int, imports time.Duration) (Process, *os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.src == nil || !c.src.standbys[local].waits() {
		return Process{}, nil, errors.New("no fork of the source waits")
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return Process{}, nil, fmt.Errorf("starting a check: %w", err)
	}
	defer theirs.Close()
	b := c.src.standbys[local]
	p := b.rank
	args, env := c.job.check(t, local, imports)
	if err := sendLine(b.line, map[string]any{"pid": p.PID, "env": env, "cwd": c.job.Launch.Dir, "args": args}, theirs); err != nil {
		ours.Close()
		c.fail(c.src, fmt.Errorf("a fork takes no order: %w", err))
		return Process{}, nil, err
	}
	b.enter(standbyForking, Process{}) // the source forks the next one soon
	return p, ours, nil
}

// Process is the source's; zero: none runs.
func (c *CheckSource) Process() Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.src == nil {
		return Process{}
	}
	return c.src.process
}

// End ends the source, and what its imports have started, but not the processes of trials. The channel is closed once nothing is left.
// Another check has a source again.
func (c *CheckSource) End() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
	c.unfit = nil
	c.changed()
	return c.ending
}

// fail ends a source; from now on each process of a trial imports for itself.
func (c *CheckSource) fail(src *source, why error) {
	if src != nil && c.src == src {
		c.drop()
		c.unfit = why
		c.changed()
	}
}

// drop ends the source.
func (c *CheckSource) drop() {
	src, ended := c.src, make(chan struct{})
	if src == nil {
		if c.ending == nil {
			close(ended)
			c.ending = ended
		}
		return
	}
	src.kill()
	c.src, c.ending = nil, ended
	job := c.job
	job.Mark = SourceMark(job.Mark)
	go func() {
		defer close(ended)
		EndAll(job.Mark, []Process{src.process}, nil, 0, job.Hidden)
	}()
}

func (c *CheckSource) changed() {
	close(c.news)
	c.news = make(chan struct{})
}
