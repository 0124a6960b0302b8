package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"holdfast.dev/holdfast/test/devcluster/gpu"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/nvml"
)

// serveDriver simulates the NVIDIA driver of the node's GPUs, if the cluster has the library for it. A fault from before a power-off is
// gone.
func serveDriver(s *layout.Spec, i int, log io.Writer) error {
	library, err := os.ReadFile(filepath.Join(layout.ControlDir, nvml.Library))
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(log, "this cluster has no pretended driver")
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(nvml.Dir(), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(nvml.Dir(), nvml.Library), library, 0o755); err != nil {
		return err
	}
	var ids []string
	for k := range s.GPUsPerNode {
		ids = append(ids, gpu.ID(s.NodeName(i), k))
	}
	server := nvml.NewServer(ids)
	sick := filepath.Join(layout.ControlDir, gpu.HealthFile)
	server.SetSick = func(ids []string) error { return os.WriteFile(sick, []byte(strings.Join(ids, "\n")), 0o644) }
	server.LogKernel = func(line string) error {
		pipe, err := os.OpenFile(filepath.Join(layout.ControlDir, layout.KernelLogPipe), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = pipe.WriteString(line + "\n")
		return errors.Join(err, pipe.Close())
	}
	if err := server.SetSick(nil); err != nil {
		return err
	}
	return errors.Join(server.Listen(filepath.Join(nvml.Dir(), nvml.Socket)), server.Listen(filepath.Join(layout.ControlDir, nvml.Socket)))
}
