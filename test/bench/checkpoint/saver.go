//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// saver is the part of DLRover's agent that keeps what ranks save, in a process of its own: it is what dlrover-run runs in its agent, so
// that the memory outlives the ranks.
type saver struct {
	cmd *exec.Cmd
	id  string
}

const saverScript = `
import time
from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver
AsyncCheckpointSaver.start_async_saving_ckpt()
while True:
    time.sleep(60)
`

// startSaver starts it. Ranks wait for its sockets, up to a minute.
func startSaver(python, id string) (*saver, error) {
	s := &saver{cmd: exec.Command(python, "-c", saverScript), id: id}
	s.cmd.Env = append(os.Environ(), "TORCHELASTIC_RUN_ID="+id, "DLROVER_LOG_LEVEL=WARNING")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the saver of %s with --dlrover-python: %w", dlrover, err)
	}
	return s, nil
}

// environment is what dlrover-run sets for a rank of one node.
func (s *saver) environment(rank, ranks int) []string {
	return []string{
		"TORCHELASTIC_RUN_ID=" + s.id, "ROLE_NAME=dlrover-trainer", "RANK=" + strconv.Itoa(rank), "LOCAL_RANK=" + strconv.Itoa(rank),
		"WORLD_SIZE=" + strconv.Itoa(ranks), "LOCAL_WORLD_SIZE=" + strconv.Itoa(ranks), "GROUP_RANK=0", "GROUP_WORLD_SIZE=1", "DLROVER_LOG_LEVEL=WARNING",
	}
}

// close ends it and removes what it leaves behind.
func (s *saver) close() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	left, _ := filepath.Glob(filepath.Join(memoryFolder, s.id+"_ckpt_*"))
	for _, path := range append(left, filepath.Join(os.TempDir(), "ckpt_sock", s.id)) {
		_ = os.RemoveAll(path)
	}
}
