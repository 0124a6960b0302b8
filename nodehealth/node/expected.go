package node

import (
	"fmt"
	"strconv"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// Labels of NVIDIA's GPU feature discovery. The kubelet's number of devices cannot be used: it may count slices of GPUs, or the same GPU
// several times.
const (
	labelCount    = "nvidia.com/gpu.count"
	labelStrategy = "nvidia.com/mig.strategy"
)

// expectation is how many GPUs a Node should have and the source of that; 0: unknown. final: a user wrote it.
type expectation struct {
	gpus  int
	by    string
	final bool
}

// expected reads a Node. Under strategy "single" the label counts MIG slices.
func expected(n *object) (expectation, error) {
	if text, ok := n.Metadata.Annotations[v1alpha1.AnnotationGPUs]; ok {
		return counted("annotation "+v1alpha1.AnnotationGPUs, text, true)
	}
	text, ok := n.Metadata.Labels[labelCount]
	if !ok || n.Metadata.Labels[labelStrategy] == "single" {
		return expectation{}, nil
	}
	return counted("label "+labelCount, text, false)
}

func counted(by, text string, final bool) (expectation, error) {
	gpus, err := strconv.Atoi(text)
	if err != nil || gpus < 0 {
		return expectation{}, fmt.Errorf("%s of the Node is %q: write the number of GPUs, or remove it", by, text)
	}
	return expectation{gpus, by, final}, nil
}

// count calls Expected with the number of GPUs that the Node should have, if it has changed. The caller holds w.said.
func (w *Writer) count(n *object) {
	if w.Expected == nil {
		return
	}
	now, err := expected(n)
	if err != nil && err.Error() != w.wrong {
		w.Log.Warn("the expected number of GPUs of the node is unknown", "error", err)
	}
	w.wrong = ""
	if err != nil {
		w.wrong = err.Error()
	}
	if now != w.gpus {
		w.gpus = now
		w.Expected(now.gpus, now.by, now.final)
	}
}
