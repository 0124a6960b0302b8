//go:build linux

package child

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast.dev/holdfast/ckptagent/format"
	"holdfast.dev/holdfast/ckptagent/store"
)

// What a state says decides how much is to be kept and done for its index. So that is done by a process which may not take more than this, and
// which is the first to be killed where the container is short of memory.
const (
	indexProcessor = 60 // seconds
	// indexHeap is where its garbage collector begins to work hard, IndexMemory where it ends: Go takes 64 MiB at a time.
	indexHeap   = 24 << 20
	IndexMemory = 192 << 20
	// indexWait is how long a manifest waits for it at most, where storage does not answer.
	indexWait = 20 * time.Second
	maxSaid   = 4 << 10
)

type indexRequest struct {
	Folder   string          `json:"folder"`
	Writer   string          `json:"writer"`
	Manifest json.RawMessage `json:"manifest"`
}

// Index writes the folder by which stock torch reads a step where it lies, by a process that command starts and that calls ServeIndex. The
// error says why there is none.
func Index(command func() *exec.Cmd, folder, writer string, m format.Manifest) error {
	asked, err := json.Marshal(indexRequest{folder, writer, m.Encode()})
	if err != nil {
		return err
	}
	cmd, said := command(), &head{}
	cmd.Stdin, cmd.Stdout, cmd.Dir = bytes.NewReader(asked), said, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := store.InBackground(cmd.Start); err != nil {
		return fmt.Errorf("starting the process that names its parts: %w", err)
	}
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("1000"), 0) // may have ended
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // for as long as storage holds it
	select {
	case err = <-ended:
	case <-time.After(indexWait):
		_ = cmd.Process.Kill()
		return fmt.Errorf("naming its parts took longer than %s", indexWait)
	}
	if err != nil {
		return fmt.Errorf("naming its parts needs more than %d MiB or %d s of a processor, or was killed: %w", IndexMemory>>20, indexProcessor, err)
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		return errors.New(text)
	}
	return nil
}

// head keeps the beginning of what is written.
type head struct{ strings.Builder }

func (h *head) Write(b []byte) (int, error) {
	_, _ = h.Builder.Write(b[:min(len(b), maxSaid-h.Len())])
	return len(b), nil
}

// ServeIndex is that process: it writes one index, and says on out why it did not. It ends where it needs more than so many bytes of memory,
// which is IndexMemory but under the race detector.
func ServeIndex(in io.Reader, out io.Writer, memory uint64) error {
	debug.SetMemoryLimit(indexHeap)
	for what, most := range map[int]uint64{unix.RLIMIT_CPU: indexProcessor, unix.RLIMIT_DATA: memory} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limiting what an index may take: %w", err)
		}
	}
	var r indexRequest
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("reading what is to be named: %w", err)
	}
	m, err := format.DecodeManifest(r.Manifest)
	if err == nil {
		err = store.New(store.OS{}, r.Folder, r.Writer).WriteIndex(m)
	}
	if err != nil {
		_, err = io.WriteString(out, err.Error())
	}
	return err
}
