package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed plain.py
var plainScript string

// python has torch.
const python = "/opt/holdfast-python/venv"

// launcher starts the script; its arguments end before it.
type launcher struct {
	name string
	args []string
}

func holdfast(root string) launcher {
	return launcher{systemHoldfast, []string{filepath.Join(root, "bin", "holdfast"), "run", fmt.Sprintf("--nproc-per-node=%d", ranks)}}
}

func torchrun() launcher {
	return launcher{systemTorchrun, []string{filepath.Join(python, "bin", "torchrun"), "--standalone", fmt.Sprintf("--nproc-per-node=%d", ranks)}}
}

// job is the script under a launcher, with the pipes of its ranks.
type job struct {
	name            string
	cmd             *exec.Cmd
	log             *os.File
	orders, answers []*os.File
	read            []*bufio.Reader
	ended           chan error
}

// start starts a job, which then waits for orders.
func start(folder string, round int, l launcher) (_ *job, err error) {
	folder = filepath.Join(folder, fmt.Sprintf("%s-%d", l.name, round))
	script := filepath.Join(folder, "plain.py")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(script, []byte(plainScript), 0o644)); err != nil {
		return nil, err
	}
	j := &job{name: l.name, ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	for rank := range ranks {
		for kind, into := range map[string]*[]*os.File{"orders": &j.orders, "answers": &j.answers} {
			path := filepath.Join(folder, fmt.Sprintf("%s-%d", kind, rank))
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				return nil, err
			}
			pipe, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0) // both ends: no rank's end closes it
			if err != nil {
				return nil, err
			}
			*into = append(*into, pipe)
		}
		j.read = append(j.read, bufio.NewReader(j.answers[rank]))
	}
	if j.log, err = os.Create(filepath.Join(folder, "log")); err != nil {
		return nil, err
	}
	j.cmd = exec.Command(l.args[0], append(l.args[1:], script, folder)...)
	j.cmd.Dir, j.cmd.Stdout, j.cmd.Stderr = folder, j.log, j.log
	j.cmd.Env = append(os.Environ(), "PATH="+filepath.Join(python, "bin")+":"+os.Getenv("PATH"), "OMP_NUM_THREADS=1")
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { j.ended <- j.cmd.Wait() }()
	return j, nil
}

func (j *job) close() {
	for _, f := range append(append([]*os.File{j.log}, j.orders...), j.answers...) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// end ends the job.
func (j *job) end() error {
	defer j.close()
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-j.ended:
		return nil
	case <-time.After(time.Minute):
		_ = j.cmd.Process.Kill()
		return fmt.Errorf("%s did not end within a minute of SIGTERM", j.name)
	}
}

// answer is what all ranks answered to an order.
type answer struct {
	// hooked and bare are the costs of a step with the hooks and without.
	hooked, bare cost
	// before and after are what the processes had used when they got the order and when they answered, in processor seconds; hooks is how
	// many of torch's hooks there are.
	before, after float64
	hooks         int
}

// block orders steps. A step's time is that of the slowest rank.
func (j *job) block(ctx context.Context, steps int, limit time.Duration) (out answer, err error) {
	for rank, pipe := range j.orders {
		if _, err := fmt.Fprintln(pipe, steps); err != nil {
			return out, fmt.Errorf("%s, rank %d: %w", j.name, rank, err)
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, pipe := range j.answers {
			_ = pipe.SetReadDeadline(time.Now())
		}
	})
	defer stop()
	for rank, pipe := range j.answers {
		if err := pipe.SetReadDeadline(time.Now().Add(limit)); err != nil {
			return out, err
		}
		line, err := j.read[rank].ReadString('\n')
		if err != nil {
			return out, errors.Join(ctx.Err(), fmt.Errorf("%s, rank %d has not answered: %w; the end of its output: %q", j.name, rank, err, j.tail()))
		}
		var one answer
		_, err = fmt.Sscan(line, &one.hooked.wall, &one.hooked.cpu, &one.bare.wall, &one.bare.cpu, &one.before, &one.after, &one.hooks)
		if err != nil {
			return out, fmt.Errorf("%s, rank %d answered %q: %w", j.name, rank, line, err)
		}
		out.add(one)
	}
	return out, ctx.Err()
}

// add adds another rank's answer.
func (a *answer) add(b answer) {
	a.hooked = cost{max(a.hooked.wall, b.hooked.wall), a.hooked.cpu + b.hooked.cpu}
	a.bare = cost{max(a.bare.wall, b.bare.wall), a.bare.cpu + b.bare.cpu}
	a.before, a.after, a.hooks = a.before+b.before, a.after+b.after, max(a.hooks, b.hooks)
}

// tail is the end of the job's output.
func (j *job) tail() string {
	text, _ := os.ReadFile(j.log.Name())
	return string(text[max(0, len(text)-600):])
}

// agents returns what the agent's processes of the job have used.
func (j *job) agents() agentsUse {
	out := agentsUse{}
	for _, pid := range descendants(parents(), j.cmd.Process.Pid) {
		if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || filepath.Base(program) != "holdfast-agent" {
			continue
		}
		use := useOf(pid)
		out.cpu, out.memory = out.cpu+use.cpu, out.memory+use.memory
	}
	return out
}

// all returns what all processes of the job have used.
func (j *job) all() (out agentsUse) {
	for _, pid := range append(descendants(parents(), j.cmd.Process.Pid), j.cmd.Process.Pid) {
		use := useOf(pid)
		out.cpu, out.memory = out.cpu+use.cpu, out.memory+use.memory
	}
	return out
}

// useOf reads what a process has used; nothing, if it has ended. Its memory is its proportional share, because the agent's processes run
// one program.
func useOf(pid int) (out agentsUse) {
	if f := statOf(pid); len(f) > 12 {
		for _, ticks := range f[11:13] { // user and system time, in hundredths of a second
			n, _ := strconv.ParseUint(ticks, 10, 64)
			out.cpu += float64(n) / 100
		}
	}
	rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(rollup)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kib, _ := strconv.ParseUint(f[1], 10, 64)
			out.memory = kib << 10
		}
	}
	return out
}

// statOf returns the fields of /proc/PID/stat after the name; the first is the state.
func statOf(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndex(string(text), ")")):]), " ")
	return strings.Fields(rest)
}

// parents returns each process's parent.
func parents() map[int]int {
	out := map[int]int{}
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if f := statOf(pid); len(f) > 1 {
			out[pid], _ = strconv.Atoi(f[1])
		}
	}
	return out
}

// descendants returns all processes below one.
func descendants(parent map[int]int, of int) (out []int) {
	for pid := range parent {
		for up := parent[pid]; up > 1; up = parent[up] {
			if up == of {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// measurement is the jobs of one round.
type measurement struct {
	ours, theirs *job
}

const (
	// blockSteps is how many steps a block has: half a second, so that all systems see the same machine.
	blockSteps = 80
	// startLimit bounds the start of a job, answerLimit a block.
	startLimit, answerLimit = 3 * time.Minute, time.Minute
	// settleLimit bounds the wait for standbys; settled is the share of a core that the processes beside the ranks then use at most.
	settleLimit, settled = 3 * time.Minute, 0.05
)

// take orders one block of a job. Holdfast alone registers a hook for all optimizers.
func (m *measurement) take(ctx context.Context, system string, limit time.Duration) (answer, error) {
	j, want := m.ours, 1
	if system == systemTorchrun {
		j, want = m.theirs, 0
	}
	a, err := j.block(ctx, blockSteps, limit)
	if err == nil && a.hooks != want {
		err = fmt.Errorf("%s: torch has %d hooks for all optimizers, want %d", system, a.hooks, want)
	}
	return a, err
}

// settle has both jobs make steps until Holdfast has started its standbys.
func (m *measurement) settle(ctx context.Context, say func(string, ...any)) error {
	began := time.Now()
	for quiet := 0; quiet < 3; {
		for _, system := range []string{systemTorchrun, systemHoldfast} {
			if _, err := m.take(ctx, system, startLimit); err != nil {
				return err
			}
		}
		from, cpu := time.Now(), m.ours.all().cpu // the ranks wait meanwhile
		time.Sleep(2 * time.Second)
		if share := (m.ours.all().cpu - cpu) / time.Since(from).Seconds(); share < settled {
			quiet++
		} else {
			quiet = 0
		}
		if time.Since(began) > settleLimit {
			return fmt.Errorf("the processes beside the ranks still use more than %.0f %% of a core after %s", 100*settled, settleLimit)
		}
	}
	say("settled after %.0f s", time.Since(began).Seconds())
	return nil
}

// group takes one group of blocks.
func (m *measurement) group(ctx context.Context, number int) (group, error) {
	blocks := map[string][]answer{}
	for _, system := range turns(number) {
		a, err := m.take(ctx, system, answerLimit)
		if err != nil {
			return nil, err
		}
		blocks[system] = append(blocks[system], a)
	}
	return groupOf(blocks), nil
}

// jobs are the systems that are jobs of their own.
var jobs = []string{systemHoldfast, systemTorchrun}

// both takes a block of each job.
func (m *measurement) both(ctx context.Context) (out []answer, err error) {
	for _, system := range jobs {
		a, err := m.take(ctx, system, answerLimit)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}
