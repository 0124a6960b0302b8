// Command holdfast-nvml queries NVIDIA's library for the state of the GPUs and writes the answers to standard output.
// The command is a child of holdfast-node, because a query may hang for ever. No other program is built with cgo. The
// command ends when its standard input is closed.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"holdfast.dev/holdfast/nodehealth/nvml"
)

func main() {
	// A small process that must not disturb the node's work.
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "holdfast-nvml:", err)
		os.Exit(1)
	}
}

func run() error {
	paths := flag.String("nvml", "", "paths of NVIDIA's library, separated by commas; the first that can be loaded is used")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected %q: this program takes flags only", flag.Args())
	case strings.TrimSpace(*paths) == "":
		return fmt.Errorf("--nvml is empty: give at least one path")
	}
	return nvml.Serve(strings.Split(*paths, ","), os.Stdin, os.Stdout)
}
