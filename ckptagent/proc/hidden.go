//go:build linux

package proc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Hidden returns the processes, with their starts, that have the job's mark in an environment that this process may not read: a process of
// the ranks' user searches for them. Nil if this process runs as that user.
func (j Job) Hidden() map[int]uint64 {
	out, ok := j.asRanks("marked", j.Mark)
	if !ok {
		return nil
	}
	found := map[int]uint64{}
	for line := range strings.Lines(string(out)) {
		var pid int
		var start uint64
		if n, _ := fmt.Sscan(line, &pid, &start); n == 2 {
			found[pid] = start
		}
	}
	return found
}

// ownSession returns the process with that pid if it leads a session and has the job's mark; else false.
func (j Job) ownSession(pid int) (Process, bool) {
	st, err := readStat(pid)
	if err != nil || pid <= 1 || st.session != pid {
		return Process{}, false
	}
	own, err := isMarked(pid, st, j.Mark)
	if errors.Is(err, os.ErrPermission) {
		start, ok := j.Hidden()[pid]
		own = ok && start == st.start
	}
	return Process{PID: pid, Start: st.start}, own
}

// asRanks runs this program with one word and an input as the ranks' user and group; false if this process runs as these, or the program
// cannot be run.
func (j Job) asRanks(word, input string) ([]byte, bool) {
	if j.Launch == nil {
		return nil, false
	}
	if who := j.Launch.Limits.Identity; who.UID == uint32(os.Geteuid()) && who.GID == uint32(os.Getegid()) {
		return nil, false
	}
	who, err := json.Marshal(j.Launch.Limits)
	if err != nil {
		return nil, false
	}
	cmd := exec.Command(j.Root.Binary(), "exec", string(who), "--", j.Root.Binary(), word)
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), os.Stderr
	out, err := cmd.Output()
	return out, err == nil
}

// Marked reads a mark and writes the processes that have it: pid and start in each line.
func Marked(in *os.File, out *os.File) error {
	mark, _ := bufio.NewReader(in).ReadString('\n')
	_, _ = find(func(pid int, st stat) (bool, error) {
		marked, err := isMarked(pid, st, mark)
		if marked && err == nil {
			fmt.Fprintln(out, pid, st.start)
		}
		return false, nil
	})
	return nil
}
