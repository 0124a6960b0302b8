//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"holdfast.dev/holdfast/ckptagent/background"
	"holdfast.dev/holdfast/ckptagent/inspect"
	"holdfast.dev/holdfast/ckptagent/proc"
)

// ckpt runs for `kubectl holdfast ckpt`, in a pod of the job, and prints the content of storage as one JSON document. A verification takes
// long and ends when its input is closed: nothing else shows that the caller is gone.
func ckpt(args []string, env func(string) string, in io.Reader, out io.Writer) error {
	options, err := ckptOptions(args)
	if err != nil {
		return err
	}
	mount, gang, job := env(proc.EnvStorage), env(proc.EnvGang), env(proc.EnvJobUID)
	if mount == "" || gang == "" || job == "" {
		return errors.New("this pod has no storage: its job has no annotation holdfast.dev/storage-claim")
	}
	options.Folder = gang + "-" + job
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var storage inspect.Storage
	look := func() (err error) {
		storage, err = inspect.Look(ctx, mount, options)
		return err
	}
	if options.Deep {
		go func() {
			_, _ = io.Copy(io.Discard, in)
			cancel()
		}()
		err = background.Lowest(look)
	} else {
		err = look()
	}
	if err != nil {
		return fmt.Errorf("looking into %s: %w", mount, err)
	}
	return json.NewEncoder(out).Encode(storage)
}

func ckptOptions(args []string) (o inspect.Options, err error) {
	switch {
	case len(args) == 1 && args[0] == "ls":
		return o, nil
	case len(args) == 1 && args[0] == "verify":
		return inspect.Options{Deep: true}, nil
	case len(args) == 2 && args[0] == "verify":
		step, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || step <= 0 {
			return o, fmt.Errorf("%q is not a step: give its number", args[1])
		}
		return inspect.Options{Deep: true, Step: step}, nil
	}
	return o, errors.New("use ckpt ls, ckpt verify or ckpt verify STEP")
}
