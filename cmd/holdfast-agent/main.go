//go:build linux

// Command holdfast-agent is Holdfast's part of a training container. One static binary contains the init mode, which is
// PID 1, the agent, the shims that replace launchers, and the installer that copies all of them into the shared folder.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/loop"
	"holdfast.dev/holdfast/ckptagent/proc"
	"holdfast.dev/holdfast/ckptagent/store"
	"holdfast.dev/holdfast/ckptagent/store/child"
)

const usage = `usage:
  holdfast-agent install DIR       put binary, shims and Python files into DIR
  holdfast-agent init -- CMD...    be PID 1: run CMD beside the agent, return its exit code
  holdfast-agent run               be the agent (started by init)
  holdfast-agent storage           reach storage for the agent (started by it)
  holdfast-agent launch -- CMD...  stand in for the launcher CMD
  torchrun ...                     the same, by name
  holdfast-agent reach NAME        say as JSON to which addresses NAME resolves here
  holdfast-agent ckpt ls           say as JSON which steps of this job lie in storage
  holdfast-agent ckpt verify [N]   the same, every byte read; of step N alone; ends when standard input does
`

// memoryLimit is the soft limit of the agent's garbage collector.
const memoryLimit = 40 << 20

func main() {
	debug.SetGCPercent(50)
	os.Exit(run(os.Args))
}

func run(args []string) int {
	root, err := proc.FindRoot()
	if err != nil {
		return fail(err)
	}
	if name := filepath.Base(args[0]); name == "torchrun" {
		return proc.Shim(root, append([]string{name}, args[1:]...))
	}
	if len(args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch rest := args[2:]; {
	case args[1] == "install" && len(rest) == 1:
		if err := install(rest[0]); err != nil {
			return fail(err)
		}
		return 0
	case args[1] == "init" && len(rest) > 1 && rest[0] == "--":
		return proc.Init(root, rest[1:])
	case args[1] == "launch" && len(rest) > 1 && rest[0] == "--":
		return proc.Shim(root, rest[1:])
	case args[1] == "torchrun":
		return proc.Shim(root, args[1:])
	case args[1] == "exec":
		return proc.Exec(rest)
	case args[1] == "marked" && len(rest) == 0:
		if err := proc.Marked(os.Stdin, os.Stdout); err != nil {
			return fail(err)
		}
		return 0
	case args[1] == "shared" && len(rest) == 0:
		if err := json.NewEncoder(os.Stdout).Encode(proc.LookShared()); err != nil {
			return fail(err)
		}
		return 0
	case args[1] == "reach" && len(rest) == 1:
		if err := reach(rest[0], os.Stdout); err != nil {
			return fail(err)
		}
		return 0
	case args[1] == "storage" && len(rest) == 0:
		debug.SetMemoryLimit(memoryLimit)
		if err := child.Serve(store.OS{}, os.Stdin, os.Stdout); err != nil {
			return fail(err)
		}
		return 0
	case args[1] == "ckpt":
		debug.SetMemoryLimit(memoryLimit)
		if err := ckpt(rest, os.Getenv, os.Stdin, os.Stdout); err != nil {
			return fail(err)
		}
		return 0
	case args[1] == "run" && len(rest) == 0:
		debug.SetMemoryLimit(memoryLimit)
		proc.DropDescriptors()
		if err := loop.Run(context.Background(), config(root)); err != nil {
			return fail(err)
		}
		return 0
	}
	fmt.Fprint(os.Stderr, usage)
	return 2
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "holdfast:", err)
	return 1
}

// config reads the environment that the webhook and init set.
func config(root proc.Root) loop.Config {
	ranks, _ := strconv.Atoi(os.Getenv(proc.EnvRanks))
	state, _ := strconv.ParseUint(os.Getenv(proc.EnvStateBytes), 10, 64)
	slots, _ := strconv.ParseUint(cmp.Or(os.Getenv(proc.EnvSlots), strconv.Itoa(format.Slots)), 10, 32)
	grace, _ := strconv.ParseUint(os.Getenv(proc.EnvGrace), 10, 31)
	var restarts *int
	if n, err := strconv.Atoi(os.Getenv(proc.EnvMaxRestarts)); err == nil {
		restarts = &n
	}
	initPID, _ := strconv.Atoi(os.Getenv(proc.EnvInit))
	os.Unsetenv(proc.EnvInit) // later runs of the command must have the environment of its first run
	var ports proc.Ports
	if text := os.Getenv(proc.EnvMasterPort); text != "" && os.Getenv(proc.EnvSlot) == "0" {
		var err error
		if ports, err = proc.ParsePorts(text); err != nil {
			fail(err)
		}
	}
	var addresses []netip.Addr
	for text := range strings.SplitSeq(os.Getenv(proc.EnvAddresses), ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, a)
		}
	}
	c := loop.Config{
		Root:        root,
		Container:   os.Getenv(proc.EnvContainer),
		Init:        initPID,
		Coordinator: os.Getenv(proc.EnvCoordinator),
		Addresses:   addresses,
		Ports:       ports,
		CA:          os.Getenv(proc.EnvCA),
		PodIP:       os.Getenv(proc.EnvPodIP),
		PodUID:      os.Getenv(proc.EnvPodUID),
		HostNetwork: os.Getenv(proc.EnvNetwork) == "host",
		Ranks:       ranks,
		StateBytes:  state,
		Slots:       uint32(slots),
		Standbys:    os.Getenv(proc.EnvStandbys) != "off",
		Log:         os.Stderr,
		Storage: os.Getenv(
			proc.EnvStorage,
		),
		Gang:        os.Getenv(proc.EnvGang),
		JobUID:      os.Getenv(proc.EnvJobUID),
		Grace:       time.Duration(grace) * time.Second,
		MaxRestarts: restarts,
	}
	if c.Container != "" { // started by init, which left a pipe open for the agent only
		syscall.CloseOnExec(proc.PokeFD)
		c.Poke = os.NewFile(proc.PokeFD, "init")
	}
	return c
}
