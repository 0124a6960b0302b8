package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"

	"holdfast.dev/holdfast/test/devcluster/kmsg"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

const (
	kmsgFile   = "/dev/kmsg"
	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

// newBoot writes a new boot id, as a kernel does at each boot.
func newBoot(s *layout.Spec, i int) error {
	return os.WriteFile(s.NodePath(i, "boot_id"), []byte(string(uuid.NewUUID())+"\n"), 0o444)
}

// serveKernelLog replaces the machine's kernel log by the node's own. Each line written to the log pipe in the node's control directory
// becomes a record of the kernel.
func serveKernelLog(s *layout.Spec, i int) error {
	pipe := s.NodeControl(i, layout.KernelLogPipe)
	if err := unix.Mkfifo(pipe, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("making %s: %w", pipe, err)
	}
	lines, err := os.OpenFile(pipe, os.O_RDWR, 0) // opened for writing, too, so that it never ends
	if err != nil {
		return err
	}
	device, err := kmsg.Mount(kmsgFile, kmsg.NewLog(kmsg.DefaultLimit))
	if err != nil {
		return err
	}
	device.Append(5, "Linux version of "+s.NodeName(i)+", a node of the dev cluster "+s.Name)
	go func() {
		for in := bufio.NewScanner(lines); in.Scan(); {
			facility, level, text := kmsg.ParseLine(in.Text())
			device.Append(facility<<3|level, text)
		}
	}()
	return nil
}
