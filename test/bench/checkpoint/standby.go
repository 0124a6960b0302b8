//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ways in which killed ranks of holdfast restore: in new interpreters or in standbys, each with or without ck.skip_init.
const (
	skipInit        = "holdfast-skip-init"
	standby         = "holdfast-standby"
	standbySkipInit = "holdfast-standby-skip-init"
)

// isHoldfast reports whether a system or a way is holdfast's.
func isHoldfast(way string) bool { return way == holdfast || strings.HasPrefix(way, holdfast+"-") }

// inStandbys reports whether killed ranks restore in this way in standbys.
func inStandbys(way string) bool { return way == standby || way == standbySkipInit }

// held is a standby of one rank and its source, which wait as under an agent.
type held struct {
	*worker
	line    *os.File // to the standby
	control *os.File // to the source
}

// becomes gives a standby its order to become the rank, with these variables.
func (h *held) becomes(env []string) error {
	order := map[string]any{"pid": h.pid, "env": variables(env)}
	return errors.Join(writeLine(h.line, order), h.line.Close())
}

func variables(env []string) map[string]string {
	out := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		out[name] = value
	}
	return out
}

func writeLine(to *os.File, message any) error {
	line, err := json.Marshal(message)
	if err == nil {
		_, err = to.Write(append(line, '\n'))
	}
	return err
}

// start starts a source with a rank's command line and waits until the standby that it forks, or that it is, waits for its order.
func (h *held) start(ctx context.Context, python string, env, modules []string, args ...string) error {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	for _, our := range []**os.File{&h.control, &h.line} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		*our = os.NewFile(uintptr(fds[0]), "standby")
		theirs = append(theirs, os.NewFile(uintptr(fds[1]), "standby"))
	}
	h.worker = newWorker(ctx, python, append(env, "HOLDFAST_STANDBY_FD=3", "HOLDFAST_STANDBY_FDS=4"), args...)
	h.worker.control, h.cmd.ExtraFiles = h.control, theirs
	if err := h.worker.start(); err != nil {
		return err
	}
	for _, f := range theirs {
		f.Close() // else their ends would not be seen
	}
	err := errors.Join(writeLine(h.control, map[string]any{"modules": modules}), writeLine(h.control, map[string]any{"fork": []int{0}}))
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(h.line).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("a standby is not ready: %w: %s", err, h.said)
	}
	var ready struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		return err
	}
	h.pid = ready.PID
	return nil
}

// end ends a standby, and its source, however far start has come.
func (h *held) end() {
	h.line.Close()
	if h.worker == nil || h.cmd.Process == nil {
		h.control.Close()
		return
	}
	_ = h.cmd.Process.Kill()
	_ = h.stop()
}

// standbys starts one for each rank if killed ranks restore in this way in standbys. They import what the first of the ranks has imported.
// The caller ends them, after an error too.
func (t *turn) standbys(ctx context.Context, way string, old *group) (all []*held, err error) {
	if !inStandbys(way) {
		return nil, nil
	}
	a, err := old.ask("modules")
	if err != nil {
		return nil, err
	}
	modules := slices.DeleteFunc(a[0].Modules, func(m string) bool { return strings.Contains(m, "holdfast") || strings.HasPrefix(m, "__") })
	for rank := range t.ranks {
		h := &held{}
		all = append(all, h)
		if err := h.start(ctx, string(t.python), t.environment(), modules, t.arguments(way, rank, t.step)...); err != nil {
			return all, err
		}
	}
	return all, nil
}

// killStandby kills a rank that a source has forked; the source ends when its socket is closed.
func (w *worker) killStandby() {
	if w.control == nil {
		return
	}
	if w.pid != 0 {
		_ = syscall.Kill(w.pid, syscall.SIGKILL)
	}
	w.control.Close()
}
