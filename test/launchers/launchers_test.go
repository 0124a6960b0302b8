//go:build linux

package launchers

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
	"holdfast.dev/holdfast/ckptagent/proc/proctest"
	"holdfast.dev/holdfast/internal/eventually"
)

// row is one launcher of the matrix.
type row struct {
	name string
	// command is what a user writes; {scripts} is the scripts' folder, {pod} the pod's index.
	command string
	pods    int
	// alone is the command that starts the same world on one machine without Holdfast, if the command itself cannot.
	alone string
}

const steps = 20

// rows are the launchers, each with two ranks. -run TestLaunchers/NAME runs one.
var rows = []row{
	{name: "torchrun", command: "torchrun --nproc-per-node=2 {scripts}/ddp.py --lr 0.05"},
	{name: "torch.distributed.launch", command: "python3 -m torch.distributed.launch --nproc-per-node=2 {scripts}/ddp.py --lr 0.05"},
	{name: "accelerate", command: "accelerate launch --multi_gpu --num_processes 2 {scripts}/accelerated.py --lr 0.05"},
	{name: "accelerate, two pods", pods: 2, alone: "accelerate launch --multi_gpu --num_processes 2 {scripts}/accelerated.py --lr 0.05",
		command: "accelerate launch --multi_gpu --num_machines 2 --machine_rank {pod} --main_process_ip 127.0.0.1 --main_process_port 29511 --num_processes 2 {scripts}/accelerated.py --lr 0.05"},
	{name: "deepspeed", command: "deepspeed --num_gpus 2 {scripts}/speedy.py --lr 0.05"},
	{name: "deepspeed, two pods", pods: 2, command: "deepspeed --hostfile {scripts}/hostfile {scripts}/speedy.py --lr 0.05", alone: "deepspeed --num_gpus 2 {scripts}/speedy.py --lr 0.05"},
	{name: "transformers by accelerate", command: "accelerate launch --multi_gpu --num_processes 2 {scripts}/hf.py"},
	{name: "transformers by torchrun", command: "torchrun --nproc-per-node=2 {scripts}/hf.py"},
	{name: "lightning by torchrun", command: "torchrun --nproc-per-node=2 {scripts}/lit.py"},
}

func (r row) argv(command string, pod int) []string {
	here, _ := filepath.Abs("scripts")
	return strings.Fields(strings.NewReplacer("{scripts}", here, "{pod}", fmt.Sprint(pod)).Replace(command))
}

// lesson is one training and its folders.
type lesson struct {
	t   *testing.T
	dir string
	env []string
}

func newLesson(t *testing.T, env ...string) *lesson {
	t.Helper()
	dir, err := os.MkdirTemp("", "hfw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &lesson{t: t, dir: dir, env: append([]string{"LESSON_OUT=" + dir, fmt.Sprintf("LESSON_STEPS=%d", steps)}, env...)}
}

// losses are the losses of each step; a repeated step must have the same loss.
func (l *lesson) losses() map[string]string {
	l.t.Helper()
	raw, _ := os.ReadFile(filepath.Join(l.dir, "losses"))
	out := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		step, loss, whole := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !whole || !strings.HasSuffix(line, "\n") {
			continue
		}
		if before, ok := out[step]; ok && before != loss {
			l.t.Errorf("step %s had loss %s and then %s", step, before, loss)
		}
		out[step] = loss
	}
	return out
}

// seen is what a rank observed of its launcher.
type seen struct {
	Argv    []string          `json:"argv"`
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
}

func (l *lesson) seen(rank int) seen {
	l.t.Helper()
	raw, err := os.ReadFile(filepath.Join(l.dir, fmt.Sprintf("seen-%d-0.json", rank)))
	var s seen
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		l.t.Fatalf("what rank %d saw: %v", rank, err)
	}
	return s
}

// ours may exist on one side alone; theirs exist on both and differ from run to run: addresses, names of folders.
var (
	ours   = []string{"HOLDFAST_", "PYTHONPATH", "LESSON_", "PWD", "OLDPWD", "SHLVL", "_"} // variables of the shell and of the test, too
	theirs = []string{"MASTER_", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHINDUCTOR_CACHE_DIR", "PATH", "HOME", "TMPDIR"}
)

// compare lists the differences between what a rank observes under Holdfast and under its launcher alone.
func compare(mine, plain seen) (out []string) {
	if !slices.Equal(mine.Argv, plain.Argv) {
		out = append(out, fmt.Sprintf("arguments %q, alone %q", mine.Argv, plain.Argv))
	}
	if !slices.Equal(mine.Command, plain.Command) {
		out = append(out, fmt.Sprintf("command line %q, alone %q", mine.Command, plain.Command))
	}
	names := maps.Clone(mine.Env)
	maps.Copy(names, plain.Env)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, in := mine.Env[name]
		b, alone := plain.Env[name]
		switch {
		case name == "TORCHELASTIC_MAX_RESTARTS" && alone && a == "10": // Holdfast's default without a number (docs/launchers.md)
		case slices.ContainsFunc(ours, func(p string) bool { return name == p || p != "_" && strings.HasPrefix(name, p) }):
		case in != alone, a != b && !slices.ContainsFunc(theirs, func(p string) bool { return strings.HasPrefix(name, p) }):
			out = append(out, fmt.Sprintf("%s=%q (%v), alone %q (%v)", name, a, in, b, alone))
		}
	}
	return out
}

// run is a lesson under agents.
type run struct {
	*lesson
	c    *coordtest.Coordinator
	d    *coordtest.Gang
	pods []*proctest.Container
	row  row
}

func start(t *testing.T, r row, env ...string) *run {
	t.Helper()
	g := &run{lesson: newLesson(t, env...), c: coordtest.Start(t), row: r}
	var names []string
	for i := range max(r.pods, 1) {
		name := fmt.Sprintf("pod-%d", i)
		names = append(names, name)
		g.pods = append(g.pods, g.pod(i))
	}
	g.d = g.c.Lead(names...)
	return g
}

func (g *run) pod(i int) *proctest.Container {
	g.t.Helper()
	command := append([]string{"bash", "-c", `"$@"; code=$?; echo "after $code"; exit $code`, "bash"}, g.row.argv(g.row.command, i)...)
	return startPod(g.t, g.c, fmt.Sprintf("pod-%d", i), g.dir, append(g.env, "HOLDFAST_STANDBYS=off"), command...)
}

// at waits until a step is finished.
func (g *run) at(step int) {
	g.t.Helper()
	eventually.Holds(g.t, fmt.Sprintf("step %d", step), func() (bool, any) {
		for _, p := range g.pods {
			select {
			case <-p.Ended():
				g.t.Fatalf("pod %s ended with code %d before step %d", p.Name, p.Code(), step)
			default:
			}
		}
		done := g.losses()
		return done[fmt.Sprint(step)] != "", done
	})
}

// held makes the last step wait for release, so that no training ends before the test has done its part.
var held = fmt.Sprintf("LESSON_HOLD_AT=%d", steps)

// release lets a held training take its last step.
func (g *run) release() {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "go"), nil, 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// finish waits for the end of all pods and for the output after their launchers.
func (g *run) finish(code int) {
	g.t.Helper()
	for _, p := range g.pods {
		if got := p.Wait(); got != code {
			g.t.Errorf("pod %s ended with code %d, want %d", p.Name, got, code)
		}
		if want := fmt.Sprintf("after %d\n", code); !strings.Contains(p.Out.String(), want) {
			g.t.Errorf("what comes after the launcher did not say %q", want)
		}
	}
}

// TestLaunchers fills the matrix: what a rank observes, and the job's result when a rank or the agent is killed, the script fails, or the
// pod is drained. With -update it writes the table of the page.
func TestLaunchers(t *testing.T) {
	python(t)
	results := map[string]map[string]string{}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			alone := newLesson(t)
			command := r.argv(r.command, 0)
			if r.alone != "" {
				command = r.argv(r.alone, 0)
			}
			out, errs, code := plain(t, alone.dir, alone.env, command...)
			for range 2 {
				if code == 0 || !strings.Contains(errs, "terminate called without an active exception") {
					break
				}
				out, errs, code = plain(t, alone.dir, alone.env, command...) // gloo's threads sometimes abort it while Python ends
			}
			want := alone.losses()
			if code != 0 || len(want) != steps {
				t.Fatalf("alone it ends with code %d after %d steps:\n%s\n%s", code, len(want), out, errs)
			}
			results[r.name] = map[string]string{}
			for _, c := range columns {
				t.Run(c.name, func(t *testing.T) { // subtests that -run leaves out do not run, and pass
					results[r.name][c.name] = "**no**"
					c.test(t, r, alone, want)
					if !t.Failed() {
						results[r.name][c.name] = "yes"
					}
				})
			}
		})
	}
	if *update {
		matrix.write(t, results)
	}
}

// columns are the events of a job.
var columns = []struct {
	name string
	test func(t *testing.T, r row, alone *lesson, want map[string]string)
}{
	{"start", begin},
	{"kill", kill},
	{"fail", func(t *testing.T, r row, _ *lesson, _ map[string]string) { fail(t, r) }},
	{"drain", func(t *testing.T, r row, _ *lesson, want map[string]string) { drain(t, r, want) }},
}

// begin: ranks observe what their launcher shows them without Holdfast, and the job finishes with the losses of a job without Holdfast.
func begin(t *testing.T, r row, alone *lesson, want map[string]string) {
	g := start(t, r)
	g.finish(0)
	if got := g.losses(); !maps.Equal(got, want) {
		t.Errorf("losses %v\nwithout us %v", got, want)
	}
	if g.d.Restarts() != 0 {
		t.Errorf("%d restarts", g.d.Restarts())
	}
	for rank := range 2 {
		if r.alone != "" { // another distribution of the ranks
			break
		}
		for _, d := range compare(g.seen(rank), alone.seen(rank)) {
			t.Errorf("rank %d: %s", rank, d)
		}
	}
}

// kill: a rank is killed, then the agent; the losses are those of an undisturbed run.
func kill(t *testing.T, r row, alone *lesson, want map[string]string) {
	g := start(t, r, "LESSON_PACE=0.1", held)
	g.at(7)
	if r.alone == "" {
		for _, d := range compare(g.seen(0), alone.seen(0)) {
			t.Errorf("rank 0: %s", d)
		}
	}
	ranks := g.c.Report("pod-0").Rank
	if err := syscall.Kill(int(ranks[len(ranks)-1].Pid), syscall.SIGKILL); err != nil {
		t.Fatalf("killing a rank: %v", err)
	}
	g.at(12)
	if err := syscall.Kill(g.pods[0].AgentPID(), syscall.SIGKILL); err != nil {
		t.Fatalf("killing the agent: %v", err)
	}
	g.release()
	g.finish(0)
	if got := g.losses(); !maps.Equal(got, want) {
		t.Errorf("losses %v\nundisturbed %v", got, want)
	}
	if g.d.Restarts() != 1 {
		t.Errorf("%d restarts, want 1", g.d.Restarts())
	}
}

// fail: a rank raises an exception each time; the launcher ends as it does without Holdfast.
func fail(t *testing.T, r row) {
	alone := newLesson(t, "LESSON_FAIL_AT=3")
	command := r.argv(r.command, 0)
	if r.alone != "" {
		command = r.argv(r.alone, 0)
	}
	_, _, code := plain(t, alone.dir, alone.env, command...)
	g := start(t, r, "LESSON_FAIL_AT=3")
	g.finish(code)
	if n := strings.Count(g.pods[len(g.pods)-1].Errs.String(), "failed on demand at step 3"); n < 2 {
		t.Errorf("the script's error stands %d times on standard error, want one for each of two attempts", n)
	}
}

// drain: the pod is deleted; its replacement continues, with the losses of an undisturbed run.
func drain(t *testing.T, r row, want map[string]string) {
	g := start(t, r, "LESSON_PACE=0.1", held)
	g.at(7)
	last := len(g.pods) - 1
	if err := g.pods[last].Init.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.pods[last].Wait()
	g.release()
	g.c.Forget(g.pods[last].Name)
	g.pods[last] = g.pod(last)
	g.finish(0)
	if got := g.losses(); !maps.Equal(got, want) {
		t.Errorf("losses %v\nundisturbed %v", got, want)
	}
}
