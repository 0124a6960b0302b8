package node

import (
	"fmt"
	"strconv"
)

// Labels of NVIDIA's GPU feature discovery. The number of devices that a kubelet has is no such word: it may count slices
// of GPUs, or the same GPU several times.
const (
	labelCount    = "nvidia.com/gpu.count"
	labelStrategy = "nvidia.com/mig.strategy"
)

// expected is how many GPUs the Node is to have and which label says so; 0: none does. Under strategy "single" the label
// counts slices.
func expected(n *object) (gpus int, by string, err error) {
	text, ok := n.Metadata.Labels[labelCount]
	if !ok || n.Metadata.Labels[labelStrategy] == "single" {
		return 0, "", nil
	}
	if gpus, err = strconv.Atoi(text); err != nil || gpus < 0 {
		return 0, "", fmt.Errorf("label %s of the Node is %q: give the number of GPUs, or take it away", labelCount, text)
	}
	return gpus, "label " + labelCount, nil
}

// count tells of how many GPUs the Node is to have, where that has changed.
func (w *Writer) count(n *object) {
	if w.Expected == nil {
		return
	}
	gpus, by, err := expected(n)
	if err != nil && err.Error() != w.wrong {
		w.Log.Warn("how many GPUs the node is to have is not known", "error", err)
	}
	w.wrong = ""
	if err != nil {
		w.wrong = err.Error()
	}
	if gpus != w.gpus {
		w.gpus = gpus
		w.Expected(gpus, by)
	}
}
