//go:build linux

package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

//go:embed worker.py
var workerScript string

// answer is one line of a worker.
type answer struct {
	Bytes   int64   `json:"bytes"`
	Stall   float64 `json:"stall"`
	CPU     float64 `json:"cpu"`
	At      int64   `json:"at"`
	Durable float64 `json:"durable"`
	Restore float64 `json:"restore"`
	Load    float64 `json:"load"`
	// StartCPU is the processor time of a process until its first step after a restore.
	StartCPU float64 `json:"start_cpu"`
	// Complete is when DLRover reports a step as complete in storage; Changed: training has changed the saved state.
	Complete float64 `json:"complete"`
	Changed  bool    `json:"changed"`
	// Modules are the imports of a process.
	Modules []string `json:"modules"`

	// For a block of steps, with saves beside training on a device:
	Step       float64   `json:"step"`
	Each       []float64 `json:"each"`
	Memcpy     float64   `json:"memcpy"`
	Overlapped int       `json:"overlapped"`
	Dropped    int       `json:"dropped"`

	// Failed is the error text of a rival that could not run the command.
	Failed string `json:"failed"`
}

// worker is one rank's process.
type worker struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	bytes int64
	said  *strings.Builder
	// control is the socket to the source of a standby, and pid the standby; of other processes nil and 0.
	control *os.File
	pid     int
}

func newWorker(ctx context.Context, python string, env []string, args ...string) *worker {
	w := &worker{cmd: exec.CommandContext(ctx, python, append([]string{"-c", scriptOf(args[0])}, args...)...), said: &strings.Builder{}}
	w.cmd.Env, w.cmd.Stderr = env, w.said
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return w
}

func startWorker(ctx context.Context, python string, env []string, args ...string) (*worker, error) {
	w := newWorker(ctx, python, env, args...)
	return w, w.start()
}

func (w *worker) start() (err error) {
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	w.out = bufio.NewScanner(out)
	w.out.Buffer(nil, 1<<20) // a list of modules is longer than a Scanner's usual line
	return w.cmd.Start()
}

func (w *worker) send(line string) error {
	_, err := io.WriteString(w.in, line+"\n")
	return err
}

func (w *worker) receive() (a answer, err error) {
	if !w.out.Scan() {
		return a, fmt.Errorf("the process wrote no result: %w: %s", errors.Join(w.out.Err(), w.stop()), w.said)
	}
	return a, json.Unmarshal(w.out.Bytes(), &a)
}

func (w *worker) stop() error {
	w.in.Close()
	w.killStandby()
	return w.cmd.Wait()
}

// group is all ranks of one system.
type group struct {
	system  string
	workers []*worker
}

// ask sends a line to all ranks at once and reads their results; a missing result is an error.
func (g *group) ask(line string) ([]answer, error) {
	for _, w := range g.workers {
		if err := w.send(line); err != nil {
			_, said := w.receive()
			return nil, fmt.Errorf("%s: %s: %w", g.system, line, errors.Join(err, said))
		}
	}
	return g.answers(line)
}

// one is ask for a group of one rank.
func (g *group) one(line string) (answer, error) {
	all, err := g.ask(line)
	if err != nil {
		return answer{}, err
	}
	return all[0], nil
}

func (g *group) answers(to string) (all []answer, err error) {
	for _, w := range g.workers {
		a, more := w.receive()
		if more != nil {
			err = errors.Join(err, fmt.Errorf("%s: %s: %w", g.system, to, more))
		}
		all = append(all, a)
	}
	return all, err
}

// stop ends the processes.
func (g *group) stop() {
	for _, w := range g.workers {
		_ = w.send("quit")
	}
	for _, w := range g.workers {
		_ = w.stop()
	}
}

// kill kills the processes with SIGKILL, as the kernel does when memory runs out.
func (g *group) kill() {
	for _, w := range g.workers {
		w.killStandby()
		_ = w.cmd.Process.Kill()
	}
	for _, w := range g.workers {
		_ = w.stop()
	}
	g.workers = nil
}

// most is the largest value of one field: a step ends when its slowest rank ends it.
func most(all []answer, of func(answer) float64) (most float64) {
	for _, a := range all {
		most = max(most, of(a))
	}
	return most
}
