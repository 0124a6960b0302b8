//go:build linux

package launchers

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"holdfast.dev/holdfast/ckptagent/coord/coordtest"
)

// runFolder matches the part of a folder's name that differs from run to run.
var runFolder = regexp.MustCompile(`none_[0-9a-z_]+`)

// tree reads all files below a folder.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		name = runFolder.ReplaceAllString(name, "none_x")
		if d.IsDir() {
			out[name] = "a folder"
			return nil
		}
		raw, err := os.ReadFile(path)
		out[name] = string(raw)
		if strings.HasPrefix(d.Name(), "filtered") { // shared by all ranks, which write concurrently
			out[name] = strings.Join(writers(string(raw)), "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// writers are the script's lines, in an order that does not depend on the ranks' speed.
func writers(console string) []string {
	var out []string
	for line := range strings.SplitSeq(console, "\n") {
		if strings.Contains(line, "writer ") {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// TestLogs: torchrun's options on logs create the same files with the same content, and the same lines on the console, as torchrun does.
func TestLogs(t *testing.T) {
	python(t)
	script, _ := filepath.Abs("scripts/writer.py")
	for _, flags := range []string{
		"--tee 3 --role rank --local-ranks-filter 0",
		"-r 3 -t 0:1,1:2 --duplicate-stdout-filters apple,two --duplicate-stderr-filters plum",
		"--redirects 0:1,1:2 --local-ranks-filter 1",
		"-t 3 --log-line-prefix-template ${role_name}|${rank}|${local_rank}|${hostname}|${x}:",
		"--local-ranks-filter 1",
	} {
		t.Run(flags, func(t *testing.T) {
			args := append([]string{"torchrun", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--log-dir", "logs"}, strings.Fields(flags)...)
			args = append(args, script, "6", "0.01")
			alone := newLesson(t)
			out, errs, code := plain(t, alone.dir, alone.env, args...)
			if code != 0 {
				t.Fatalf("alone it ends with code %d:\n%s\n%s", code, out, errs)
			}
			g := start(t, row{command: strings.Join(args, " ")})
			g.finish(0)
			want, got := tree(t, filepath.Join(alone.dir, "logs")), tree(t, filepath.Join(g.dir, "logs"))
			for name := range want {
				if got[name] != want[name] {
					t.Errorf("%s holds %q, by torchrun %q", name, got[name], want[name])
				}
			}
			for name := range got {
				if _, ok := want[name]; !ok {
					t.Errorf("%s is there, by torchrun it is not", name)
				}
			}
			if a, b := writers(g.pods[0].Out.String()), writers(out); !slices.Equal(a, b) {
				t.Errorf("standard output has\n%s\nby torchrun\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
			}
			if a, b := writers(g.pods[0].Errs.String()), writers(errs); !slices.Equal(a, b) {
				t.Errorf("standard error has\n%s\nby torchrun\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
			}
		})
	}
}

// TestLogsOfAnAgentThatComesBack: the next agent continues the console output where the killed one stopped, and each attempt has its own
// files.
func TestLogsOfAnAgentThatComesBack(t *testing.T) {
	script, _ := filepath.Abs("scripts/writer.py")
	const lines = 300
	g := &run{lesson: newLesson(t), c: coordtest.Start(t)}
	p := startPod(t, g.c, "pod-0", g.dir, append(g.env, "HOLDFAST_STANDBYS=off"), "torchrun", "--nproc-per-node=2", "--log-dir=logs", "--tee=3", script, fmt.Sprint(lines), "0.02")
	g.c.Lead("pod-0")
	p.Out.Await(t, "writer 0.0 out 20 ")
	if err := syscall.Kill(p.AgentPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Out.Await(t, "writer 0.0 out 100 ") // after the agent's death
	if err := syscall.Kill(int(g.c.Report("pod-0").Rank[1].Pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 0 {
		t.Fatalf("the pod ended with code %d", code)
	}
	console := p.Out.String()
	for local := range 2 {
		for i := range lines {
			for attempt := range 2 {
				line := fmt.Sprintf("[default%d]:writer %d.%d out %d ", local, local, attempt, i)
				if n := strings.Count(console, line); n != 1 && (attempt == 1 || i <= 100 && local == 0) {
					t.Errorf("%q is shown %d times", line, n)
				}
			}
		}
	}
	if n := len(writers(console)); n < 2*lines+200 {
		t.Errorf("%d lines were shown", n)
	}
	files, _ := filepath.Glob(filepath.Join(g.dir, "logs", "none_*", "attempt_*", "*", "stdout.log"))
	if len(files) != 4 {
		t.Errorf("files %v", files)
	}
}

// TestTorchtitan: the command line of torchtitan's run_train.sh, unchanged, has the same effect as without Holdfast.
func TestTorchtitan(t *testing.T) {
	python(t)
	scripts, _ := filepath.Abs("scripts")
	const line = `torchrun --nproc_per_node=2 --rdzv_backend c10d --rdzv_endpoint="localhost:0" --local-ranks-filter 0 --role rank --tee 3 ` +
		`-m torchtitan.train --module llama3 --config llama3_debugmodel`
	alone := newLesson(t, "PYTHONPATH="+scripts)
	out, errs, code := plain(t, alone.dir, alone.env, "bash", "-c", line)
	if code != 0 {
		t.Fatalf("alone it ends with code %d:\n%s\n%s", code, out, errs)
	}
	g := &run{lesson: newLesson(t, "PYTHONPATH="+scripts), c: coordtest.Start(t)}
	p := startPod(t, g.c, "pod-0", g.dir, append(g.env, "HOLDFAST_STANDBYS=off"), "bash", "-c", line)
	g.c.Lead("pod-0")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if a, b := writers(p.Out.String()), writers(out); !slices.Equal(a, b) || len(a) != 1 || !strings.HasPrefix(a[0], "[rank0]:writer 0 rank ['--module', 'llama3'") {
		t.Errorf("standard output %q, by torchrun %q", a, b)
	}
	if a, b := writers(p.Errs.String()), writers(errs); !slices.Equal(a, b) || len(a) != 1 {
		t.Errorf("standard error %q, by torchrun %q", a, b)
	}
	if files, _ := filepath.Glob(filepath.Join(g.dir, "torchelastic_*", "none_*", "attempt_0", "1", "stdout.log")); len(files) != 1 {
		t.Errorf("the output of rank 1 is in %v", files)
	}
}
