package nvml

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"slices"
	"time"

	"holdfast.dev/holdfast/nodehealth"
)

const (
	// maxStuck is the number of unkillable children after which no more are started.
	maxStuck = 3
	// killTimeout is how long a killed child may take to end before it counts as stuck.
	killTimeout  = time.Second
	sayHangEvery = time.Second
	firstRetry   = 500 * time.Millisecond
	longestRetry = 10 * time.Second
	// looks is the number of checks of a silent child before it counts as hung.
	looks = 20
	// releaseLook is the interval at which Released is called while GPUs are released, restFor the time between two reads of a device that
	// waits for a reset.
	releaseLook = 250 * time.Millisecond
	restFor     = 20 * time.Second
)

// Watch is the parent. All fields but Round, Released and Resting must be set.
type Watch struct {
	// Command starts the child, which calls Serve.
	Command []string
	// Start is how long the child may take until its first line: the library may have to wake every GPU. Deadline is how long it may be
	// silent after that.
	Start, Deadline time.Duration
	// Emit is called in one goroutine.
	Emit func(nodehealth.Signal)
	// Round is called with the time that NVML took to answer for all devices.
	Round func(time.Duration)
	// Released returns the annotation or label that makes the daemon release the GPUs; then no child runs, so that none of their files is
	// open. Empty: they are not released.
	Released func() string
	// Resting reports whether a device waits for a reset: then the child runs only for a moment at intervals, because the driver refuses
	// the reset while the device is open.
	Resting func() bool
	Log     *slog.Logger

	restFor time.Duration // 0: restFor
}

func (w *Watch) released() string {
	if w.Released == nil {
		return ""
	}
	return w.Released()
}

func (w *Watch) resting() bool { return w.Resting != nil && w.Resting() }

// Run keeps a child running until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	r := &runner{Watch: w, gone: make(chan struct{}, maxStuck+1), retry: firstRetry}
	for ctx.Err() == nil {
		if r.stuck >= maxStuck {
			r.hang("no further probe can be started: earlier ones hang and cannot be killed")
			r.pause(ctx, sayHangEvery)
			continue
		}
		if by := r.released(); by != "" {
			r.release(ctx, by)
			continue
		}
		r.child(ctx)
	}
}

// release runs no child while Released returns by. While a killed child has not ended, its files are open and the GPUs are not released.
func (r *runner) release(ctx context.Context, by string) {
	if r.stuck > 0 {
		r.hang("the GPUs must be released, and a probe that hangs cannot be killed")
		r.pause(ctx, sayHangEvery)
		return
	}
	r.Log.Info("the GPUs are released", "by", by)
	r.hung, r.quiet, r.retry = false, "", firstRetry
	r.Emit(nodehealth.Signal{At: time.Now(), Source: nodehealth.Probe, Kind: nodehealth.Released, Text: by})
	for ctx.Err() == nil && r.released() == by {
		r.pause(ctx, releaseLook)
	}
	r.Log.Info("the GPUs are no longer released", "by", by)
}

// rest runs no child for a while.
func (r *runner) rest(ctx context.Context) {
	for end := time.Now().Add(cmp.Or(r.restFor, restFor)); ctx.Err() == nil && time.Now().Before(end) && r.resting() && r.released() == ""; {
		r.pause(ctx, releaseLook)
	}
}

// runner is one run of a Watch.
type runner struct {
	*Watch
	// hung: the last child hung, and none has answered since.
	hung bool
	// stuck is the number of killed children that have not ended; each sends on gone when it has.
	stuck int
	gone  chan struct{}
	retry time.Duration
	quiet string // why nothing can be queried, as last logged
}

func (r *runner) hang(why string) {
	if !r.hung {
		r.Log.Warn("NVML hangs", "why", why)
	}
	r.hung = true
	r.Emit(nodehealth.Signal{At: time.Now(), Source: nodehealth.Probe, Kind: nodehealth.Hang, Text: why})
}

// pause waits, and counts stuck children that have ended.
func (r *runner) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.gone:
			r.stuck--
		case <-t.C:
			return
		}
	}
}

// child runs one child until it ends, hangs or ctx ends.
func (r *runner) child(ctx context.Context) {
	cmd := exec.Command(r.Command[0], r.Command[1:]...)
	stdin, err := cmd.StdinPipe()
	if err == nil {
		defer stdin.Close() // the child ends with it
	}
	var stdout io.ReadCloser
	if err == nil {
		stdout, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.blind(fmt.Sprintf("the probe cannot be started: %v", err))
		r.pause(ctx, longestRetry)
		return
	}
	lines, ended := make(chan line), make(chan error, 1)
	over := make(chan struct{})
	defer close(over)
	go func() {
		in := bufio.NewScanner(stdout)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			var l line
			if json.Unmarshal(in.Bytes(), &l) == nil {
				select {
				case lines <- l:
				case <-over:
				}
			}
		}
		ended <- cmd.Wait()
	}()
	r.listen(ctx, cmd, lines, ended)
}

// listen emits the child's lines. listen reports the child's silence repeatedly, until it ends. Silence is counted in checks: while this
// process gets no CPU time its ticker ticks at most once, so the child still has its time. On a node without free CPU time this takes
// longer.
func (r *runner) listen(ctx context.Context, cmd *exec.Cmd, lines <-chan line, ended <-chan error) {
	limit, silent := r.Start, 0
	look := time.NewTicker(limit / looks)
	defer look.Stop()
	again := time.NewTicker(sayHangEvery)
	defer again.Stop()
	responded := false
	for {
		select {
		case <-ctx.Done():
			r.kill(cmd, ended)
			return
		case l := <-lines:
			limit, silent, responded = r.Deadline, 0, true
			look.Reset(limit / looks)
			r.onMessage(l)
			if r.released() != "" {
				r.kill(cmd, ended)
				return
			}
			if r.resting() && slices.ContainsFunc(l.Readings, nodehealth.Reading.WaitsForReset) {
				r.kill(cmd, ended)
				r.rest(ctx)
				return
			}
		case err := <-ended:
			r.ended(ctx, err, responded)
			return
		case <-again.C:
			if r.hung { // this child has not answered yet
				r.hang("the previous probe did not answer, and neither does this one")
			}
		case <-look.C:
			if r.released() != "" {
				r.kill(cmd, ended)
				return
			}
			if silent++; silent < looks {
				continue
			}
			r.hang(fmt.Sprintf("no answer for %s", limit))
			r.kill(cmd, ended)
			return
		}
	}
}

func (r *runner) onMessage(l line) {
	at := time.Now()
	switch {
	case l.Read:
		if r.hung || r.quiet != "" {
			r.Log.Info("NVML answers again", "devices", len(l.Readings))
		}
		r.hung, r.quiet, r.retry = false, "", firstRetry
		if r.Round != nil {
			r.Round(l.Took)
		}
		r.Emit(nodehealth.Signal{At: at, Source: nodehealth.NVML, Kind: nodehealth.Read, Readings: l.Readings})
	case l.Xid != 0:
		r.Emit(
			nodehealth.Signal{
				At:     at,
				Source: nodehealth.NVML,
				Kind:   nodehealth.Xid,
				Device: l.Device,
				Code:   l.Xid,
				Text:   fmt.Sprintf("Xid %d", l.Xid),
			},
		)
	case l.Blind != "":
		r.hung = false
		r.blind(l.Blind)
	}
}

func (r *runner) blind(why string) {
	if why != r.quiet {
		r.Log.Info("NVML is not loaded", "why", why)
	}
	r.quiet = why
	r.Emit(nodehealth.Signal{At: time.Now(), Source: nodehealth.Probe, Kind: nodehealth.Blind, Text: why})
}

// ended handles a child that ended without being killed; another follows. A child that never wrote a line has crashed.
func (r *runner) ended(ctx context.Context, err error, responded bool) {
	r.Log.Warn("the probe has ended", "error", err)
	if !responded && !r.hung {
		r.blind(fmt.Sprintf("the probe ends before its first answer: %v", err))
	}
	r.pause(ctx, r.retry)
	r.retry = min(2*r.retry, longestRetry)
}

// kill kills the child. One that sleeps in the kernel cannot be killed and is left behind.
func (r *runner) kill(cmd *exec.Cmd, ended <-chan error) {
	_ = cmd.Process.Kill()
	t := time.NewTimer(killTimeout)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		r.stuck++
		go func() {
			<-ended
			r.gone <- struct{}{}
		}()
	}
}
