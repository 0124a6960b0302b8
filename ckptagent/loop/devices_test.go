//go:build linux

package loop_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "holdfast.dev/holdfast/api/coordinator/v1"
	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

// seeing is a fake torch that has devices of some kind, or none.
const seeing = `
class device:
    @staticmethod
    def is_available(): return %s
    @staticmethod
    def device_count(): return 3
accelerator = xpu = npu = device
print("what a backend says on standard output")
`

// TestDevicesOfTheInterpreter: --nproc-per-node=auto and similar values mean the number of devices that torch has in the interpreter that
// trains, as for torchrun. If torch has no devices, auto means one rank per processor.
func TestDevicesOfTheInterpreter(t *testing.T) {
	needPython(t)
	if found, _ := filepath.Glob("/dev/nvidia[0-9]*"); len(found) > 0 {
		t.Skip("this machine has devices, which are counted without torch")
	}
	for name, c := range map[string]struct {
		sees, line string
		ranks      int
		refused    string
	}{
		"auto":                    {"True", "torchrun --nproc-per-node=auto train.py", 3, ""},
		"xpu":                     {"True", "torchrun --nproc-per-node=xpu train.py", 3, ""},
		"npu, as a module":        {"True", "exec python3 -m torch.distributed.run --nproc-per-node=npu train.py", 3, ""},
		"auto, and no device":     {"False", "exec taskset -c 0 torchrun --nproc-per-node=auto train.py", 1, ""},
		"xpu, and no device":      {"False", "torchrun --nproc-per-node=xpu train.py", 0, "--nproc-per-node=xpu: this pod has no device of that kind that its interpreter sees"},
		"gpu, and no such module": {"True", "torchrun --nproc-per-node=gpu train.py", 0, "--nproc-per-node=gpu: this pod has no device of that kind that its interpreter sees"},
	} {
		t.Run(name, func(t *testing.T) {
			c0 := coordtest.Start(t)
			p := newPod(t, c0, "a")
			p.File("torch.py", fmt.Sprintf(seeing, c.sees))
			p.File("train.py", sleeper)
			c0.Lead("a")
			p.Start("bash", "-c", c.line)
			if c.refused == "" {
				c0.Await(t, "a", "runs", runs(1, c.ranks))
				return
			}
			c0.Await(t, "a", "is refused", func(r *v1.Report) bool { return strings.HasPrefix(r.Refused, c.refused) })
		})
	}
}
