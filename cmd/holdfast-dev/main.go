// Command holdfast-dev runs a Kubernetes cluster on one machine: a stock control plane, real kubelets with a containerd
// each, and simulated nodes. All programs of that cluster are in this binary; argv[0] selects the program.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"holdfast.dev/holdfast/test/devcluster/image"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/node"
	"holdfast.dev/holdfast/test/devcluster/supervise"
)

// version is set at link time.
var version = "dev"

func main() {
	if run, ok := components[filepath.Base(os.Args[0])]; ok {
		os.Exit(run())
	}
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "supervise":
			err = runSupervise(os.Args[2:])
		case "node-enter", "node-init":
			err = runNode(os.Args[1], os.Args[2:])
		default:
			os.Exit(runCLI())
		}
		fmt.Fprintln(os.Stderr, "holdfast-dev "+os.Args[1]+":", err)
		os.Exit(1)
	}
	os.Exit(runCLI())
}

// ordersFD is the pipe on which a child receives its orders.
const ordersFD = 3

func runSupervise(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the cluster's directory")
	}
	rec, err := layout.ReadRecord(args[0])
	if err != nil {
		return err
	}
	return supervise.Run(&rec.Spec, os.NewFile(ordersFD, "orders"))
}

func runNode(mode string, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("the arguments must be the cluster's directory and the node's name")
	}
	rec, err := layout.ReadRecord(args[0])
	if err != nil {
		return err
	}
	i, err := rec.Spec.NodeIndex(args[1])
	if err != nil {
		return err
	}
	if mode == "node-enter" {
		return node.Enter(&rec.Spec, i, []string{"holdfast-dev", "node-init", rec.Spec.Dir, args[1]})
	}
	pause, err := image.Pause()
	if err != nil {
		return err
	}
	tar, err := pause.Tar()
	if err != nil {
		return err
	}
	return node.Init(&rec.Spec, i, os.NewFile(ordersFD, "orders"), tar)
}
