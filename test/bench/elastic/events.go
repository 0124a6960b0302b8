package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/bench/lives"
)

// events reads what the processes of a job append to the files of its folder, POD.events.
type events struct {
	*lives.Record
	folder string
	read   map[string]int
}

func newEvents(folder string) *events {
	return &events{Record: lives.New(), folder: folder, read: map[string]int{}}
}

// update reads the lines that were added.
func (e *events) update() error {
	files, err := filepath.Glob(filepath.Join(e.folder, "*.events"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pod := strings.TrimSuffix(filepath.Base(file), ".events")
		for {
			line, _, whole := bytes.Cut(text[e.read[file]:], []byte("\n"))
			if !whole {
				break
			}
			e.Line(pod, string(line))
			e.read[file] += len(line) + 1
		}
	}
	return nil
}

// wentOn waits until so many ranks have made a new step after a time.
func (e *events) wentOn(ctx context.Context, what string, limit time.Duration, world int, after time.Time) (c change, err error) {
	err = eventually.Wait(ctx, what, limit, func(context.Context) (bool, any) {
		if err := e.update(); err != nil {
			return false, err
		}
		var ok bool
		c, ok = changed(e.Steps(), world, after)
		return ok, func() string { return fmt.Sprintf("%s; last lines %q", e.Progress(world, after), e.Tail(6)) }
	})
	return c, err
}

// more waits until so many ranks have made some steps more.
func (e *events) more(ctx context.Context, world int, n int64) error {
	began := time.Now()
	return eventually.Wait(ctx, "more steps", time.Minute, func(context.Context) (bool, any) {
		err := e.update()
		made := int64(0)
		for _, s := range e.Steps() {
			if s.Rank == 0 && s.World == world && s.At().After(began) {
				made++
			}
		}
		return made >= n, fmt.Sprintf("%d of %d steps, %v", made, n, err)
	})
}

// before and between are the numbers of steps before a pod is lost, and before one joins.
const before, between = 25, 25
