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

// Hidden lists the processes, with their starts, that carry the job's mark and whose environment the kernel does not show to this process:
// another one looks, as the user whom ranks run as. Nil where that is this one.
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

// ownSession finds a process that leads a session and carries the job's mark; false where there is none of that pid.
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

// asRanks runs this program with one word and an input as the user and group as whom ranks run; false where those are this process's, or it
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

// Marked writes which processes carry the mark that is read: pid and start in each line.
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
