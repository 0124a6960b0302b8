package host

import (
	"errors"
	"os"

	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/devcluster/nvml"
)

// FailGPU makes a GPU of node i fail; the zero Fault heals all of them.
func FailGPU(rec *layout.Record, i int, f nvml.Fault) error {
	return nvml.Tell(rec.Spec.NodeControl(i, nvml.Socket), f)
}

// MakeDriver builds the simulated NVIDIA driver of the real nodes; without a compiler there is none.
func MakeDriver(s *layout.Spec, say func(string)) error {
	if s.GPUsPerNode == 0 || s.Nodes == 0 {
		return nil
	}
	at := s.Path(nvml.Library)
	if err := nvml.Build(at); errors.Is(err, nvml.ErrNoCompiler) {
		say("note: " + err.Error())
		return nil
	} else if err != nil {
		return err
	}
	for i := range s.Nodes {
		if err := os.MkdirAll(s.NodeControl(i), 0o755); err != nil {
			return err
		}
		if err := os.Link(at, s.NodeControl(i, nvml.Library)); err != nil {
			return err
		}
	}
	return nil
}
