package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"holdfast.dev/holdfast/test/devcluster/kmsg"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// LogKernel adds a line to node i's kernel log as a record of the kernel; "<n>" in front sets its priority.
func LogKernel(rec *layout.Record, i int, line string) error {
	if strings.ContainsRune(line, '\n') || len(line) > kmsg.MaxText {
		return fmt.Errorf("a line of the kernel log: use one line of at most %d bytes", kmsg.MaxText)
	}
	pipe, err := os.OpenFile(rec.Spec.NodeControl(i, layout.KernelLogPipe), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("node %s is off: it has no kernel", rec.Spec.NodeName(i))
	}
	if err != nil {
		return err
	}
	_, err = pipe.WriteString(line + "\n")
	return errors.Join(err, pipe.Close())
}
