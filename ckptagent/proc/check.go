//go:build linux

package proc

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// CheckMark is the mark of the processes of one trial in a container with that mark. It differs from that of ranks, so that they are ended
// without those that wait to become ranks, and from those of other trials: one that a driver holds may end while the next trial runs.
func CheckMark(mark string, t protocol.TrialID) string {
	return fmt.Sprintf("%s/check/%d/%d/%d/%s", mark, t.Check, t.Round, t.Attempt, t.Partner)
}

// checkSpare is the time between the ends that a check process sets itself, and those at which it is killed.
const checkSpare = 3 * time.Second

// StartCheck starts the process that tries a local rank, in that rank's environment and with the launcher's interpreter; imports is the
// time that its imports have. Its output can be read from the returned file.
func (j Job) StartCheck(t protocol.Trial, local int, imports time.Duration) (Process, *os.File, error) {
	args, env := j.check(t, local, imports)
	argv, err := j.checkArgv(args...)
	if err != nil {
		return Process{}, nil, err
	}
	c, err := j.command(argv, env)
	if err != nil {
		return Process{}, nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Process{}, nil, fmt.Errorf("starting a check: %w", err)
	}
	defer null.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return Process{}, nil, fmt.Errorf("starting a check: %w", err)
	}
	defer theirs.Close()
	c.files = [3]*os.File{null, theirs, theirs}
	p, err := startRank(c)
	if err != nil {
		ours.Close()
		return Process{}, nil, err
	}
	return p, ours, nil
}

// checkArgv is the command line of a process of a check.
func (j Job) checkArgv(args ...string) ([]string, error) {
	python, err := j.interpreter()
	return append(append(slices.Clone(python), "-u", j.Root.join("python", "holdfast_check.py")), args...), err
}

// check returns the arguments of holdfast_check.py for a local rank, and the variables on top of the launcher's environment.
func (j Job) check(t protocol.Trial, local int, imports time.Duration) (args []string, env map[string]string) {
	env = j.env(checkRun(t), local)
	for _, name := range later {
		delete(env, name)
	}
	env[EnvMark] = CheckMark(j.Mark, t.TrialID)
	mode := "alone"
	if t.Partner != "" {
		mode = "pair"
	}
	return []string{mode, "--imports", seconds(max(imports-checkSpare, time.Second)), "--deadline", seconds(t.Within - checkSpare),
		"--rank", strconv.Itoa(t.BaseRank + local), "--world", strconv.Itoa(t.WorldSize), "--local-rank", env["LOCAL_RANK"],
		"--store", t.Store}, env
}

// checkRun is a trial as a generation before the first one.
func checkRun(t protocol.Trial) protocol.Run {
	return protocol.Run{BaseRank: t.BaseRank, WorldSize: t.WorldSize}
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// interpreter returns the interpreter of ranks, or the one of torchrun if ranks are no Python.
func (j Job) interpreter() ([]string, error) {
	if len(j.Spec.Python) > 0 {
		return j.Spec.Python, nil
	}
	python, err := j.Launch.interpreter()
	return []string{python}, err
}
